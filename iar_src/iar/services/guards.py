"""Things that hold for a while: environment, signals, output, children, and a mended kfp.local."""

import contextlib
import os
import select
import shlex
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

TERMINATION_SECONDS = 20.0
RUNNER_PID = "IAR_RUNNER_PID"


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does; only the main thread can set that up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def children_ended() -> Iterator[None]:
    """Leave no process that was started inside, whatever happens: first asked, then killed."""
    import psutil

    here = psutil.Process()
    before = set(here.children(recursive=True))
    try:
        yield
    finally:
        children = [child for child in here.children(recursive=True) if child not in before]
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate()
        for child in psutil.wait_procs(children, timeout=TERMINATION_SECONDS)[1]:
            child.kill()


def end_with_runner() -> None:
    """End this process when the local runner that started it is gone, however it died: one writer only."""
    pid = int(os.environ.get(RUNNER_PID, "0"))
    if not pid or not hasattr(os, "pidfd_open"):
        return
    try:
        runner = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait_and_end() -> None:
        select.select([runner], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_end, daemon=True, name="end-with-runner").start()


def end_with(pid: int) -> None:
    """Let this process, one of a pool, end when the process `pid` is gone."""
    os.environ[RUNNER_PID] = str(pid)
    end_with_runner()


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send what this process prints to the run's log; the terminal belongs to the progress view."""
    with (
        path.open("a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        yield


@contextlib.contextmanager
def kfp_mended(log: Path) -> Iterator[None]:
    """Keep kfp.local from putting the interpreter's path in place of "python3" in folders and run file.

    It means to name the interpreter in its start script, and replaces the text in every argument. Where tasks can be
    forks of one process they are, and print into `log`. Its warnings name what only a cluster does with a task
    (image, display name).
    """
    from kfp.local import subprocess_task_handler as handler

    from iar.services.task_server import TaskServer, forks_here

    def replace_in_script(command: list[str], interpreter: str) -> list[str]:
        script = command.index("-ec") + 1
        start = command[script].replace("python3", shlex.quote(interpreter))
        return [*command[:script], start, *command[script + 1 :]]

    before = handler.replace_python_executable, handler.run_local_subprocess
    handler.replace_python_executable = replace_in_script
    try:
        with contextlib.ExitStack() as stack:
            if forks_here():
                handler.run_local_subprocess = stack.enter_context(TaskServer.started(log)).run
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"kfp\.local")
            yield
    finally:
        handler.replace_python_executable, handler.run_local_subprocess = before
