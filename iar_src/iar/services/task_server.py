"""Starts the tasks of a local run as forks of one process, so that slow imports are paid for once a run.

A task's process otherwise spends 5 to 12 seconds on importing MLflow, torch and transformers, and a run has a dozen
tasks. The server imports them while the first task that takes longer than a moment runs, so a run whose tasks are
all finished pays for none. Forks share nothing else: each task is a process of its own that may die alone.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

TRACKING = "iar.services.tracking"
SLOW_IMPORTS = (
    "torch", TRACKING, "mlflow.store.tracking.sqlalchemy_store", "transformers.models.auto.modeling_auto",
)  # fmt: skip
MOMENT_SECONDS = 1.0
POLL_SECONDS = 0.02
EXECUTOR = "kfp.dsl.executor_main"
# A process that has looked for a GPU cannot be forked any more, and importing torch's friends may look for one.
GPU_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Request:
    """A task: the source text of its component, the arguments of KFP's executor, variables set for it alone."""

    code: str
    arguments: tuple[str, ...]
    variables: dict[str, str]


class TaskServer:
    """The server as the runner sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def started(cls, log: Path) -> "Iterator[TaskServer]":
        """Start a server that ends with the block; it and its tasks print into `log`."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                bufsize=0, env=os.environ | {"_KFP_RUNTIME": "true"},
            )  # fmt: skip
        with process:
            yield cls(process)

    def run(self, full_command: Sequence[str], env_vars: Mapping[str, str] | None = None) -> int:
        """Run what KFP would start as `sh -ec SCRIPT CODE ARGUMENT...`; return the exit code, negative = a signal."""
        code, *arguments = full_command[full_command.index("-ec") + 2 :]
        assert self._process.stdin and self._process.stdout
        request = Request(code, tuple(arguments), dict(env_vars or {}))
        try:
            self._process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        return int(answer) if answer else -signal.SIGKILL  # a server that is gone was killed


def forks_here() -> bool:
    """Return whether tasks can be forks on this machine."""
    return sys.platform.startswith("linux") and not GPU_DEVICE.exists()


def serve(requests: IO[str], answers: IO[str]) -> Request | None:
    """Answer each request with its task's exit code; return None at the end, and in each fork the task to run."""
    slow = list(SLOW_IMPORTS)
    for line in requests:
        child = os.fork()
        if not child:
            answers.close()
            return Request(**json.loads(line))
        print(_exit_code(child, slow), file=answers, flush=True)
    return None


def _exit_code(child: int, slow: list[str]) -> int:
    """Wait for a task; if it takes longer than a moment, import what the next ones will need."""
    started = time.monotonic()
    while slow:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - started < MOMENT_SECONDS:
            time.sleep(POLL_SECONDS)
        else:
            import_slow(slow.pop(0))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def import_slow(name: str) -> None:
    """Import a module for the tasks to come; what is not there is theirs to report."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module(name)
        if name == TRACKING:
            module.quieten()  # MLflow reads it when it is imported


def run_task(request: Request) -> None:
    """Be the task's process: KFP's executor on the component's source, as its own script would start it."""
    import runpy

    os.environ.update(request.variables)
    with tempfile.TemporaryDirectory() as folder:
        component = Path(folder) / "ephemeral_component.py"
        component.write_text(request.code, encoding="utf-8")
        sys.argv = [EXECUTOR, "--component_module_path", str(component), *request.arguments]
        runpy.run_module(EXECUTOR, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve the runner at the other end of standard input and output; what is printed goes to standard error."""
    importlib.import_module("kfp.dsl.executor")
    importlib.import_module("iar.services.task_process")
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # Ctrl-C reaches the whole group: the task ends, then the runner ends the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = serve(requests, answers)
    if request:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        requests.close()
        run_task(request)


if __name__ == "__main__":
    main()
