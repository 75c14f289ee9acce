"""The whole pipeline on this machine: the compiled components, each in a process of its own, one after the other."""

import contextlib
import fcntl
import importlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import IarError, NoFeasibleCandidate, PermanentError, TemporaryError, UserError
from iar.records import write_json
from iar.services.attempts import Tries
from iar.services.doctor import check_disk
from iar.services.guards import RUNNER_PID, children_ended, environment, kfp_mended, output_to, sigterm_as_interrupt
from iar.services.progress import Event, EventTail, Progress, read_events, task_states
from iar.services.task_process import KINDS, write_error
from iar.services.workspace import RUN_YAML, Ref, Workspace

Watch = Callable[[Event], None]

TAIL_SECONDS = 0.2


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, its report, the result table, and how much of it was there before."""

    run_id: str
    folder: Path
    report: Path
    results: dict[str, Any]
    tasks: int
    reused: int
    seconds: float


def run(run_file: RunFile, watch: Watch | None = None) -> RunResult:
    """Run every stage, reusing what is finished; `watch` is told of each event from a second thread.

    Raises NoFeasibleCandidate after the report is written, and what the failed stage raised. Ctrl-C
    and SIGTERM end the stage that is running and raise TemporaryError: the same call continues.
    """
    if run_file.platform.backend == "kubeflow":
        raise UserError(
            "platform.backend: kubeflow runs on a cluster, and this command here; add --set platform.backend=local, "
            "or compile the pipeline"
        )
    started = time.monotonic()
    workspace = Workspace.of(run_file)
    folder = workspace.run(run_file.run_id)
    _check_disk(run_file)
    with _only_run(workspace.state):
        _open_books(run_file, folder)
        try:
            with _watching(folder / "progress.jsonl", watch):
                _run_pipeline(run_file, workspace, folder)
            return _result(run_file, folder, time.monotonic() - started)
        except IarError as error:
            if not (folder / "error.json").exists():
                write_error(folder, "", error, str(error))
            Tries(workspace, workspace.registry_url(run_file)).settle()
            raise


def _check_disk(run_file: RunFile) -> None:
    """Raise UserError when the disk cannot hold what the run surely writes; nothing is changed before."""
    found = check_disk(run_file)
    if found.status == "fail":
        raise UserError(f"{found.detail}; {found.fix}")


@contextlib.contextmanager
def _only_run(state: Path) -> Iterator[None]:
    """Hold the state folder's lock. Raises UserError naming the run that holds it, or a folder not writable."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"state folder {state}: {error.strerror}; set run.state to a folder you can write") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(descriptor, 20, 0).decode().strip()
            owner = f" (process {pid})" if pid else ""
            raise UserError(
                f"state folder {state} is in use by another run{owner}: wait for it or set another run.state"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_running(state: Path) -> bool:
    """Return whether a local run holds the state folder now."""
    try:
        descriptor = os.open(state / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_books(run_file: RunFile, folder: Path) -> None:
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.json").unlink(missing_ok=True)
    Progress(folder / "progress.jsonl", "").session()
    about: dict[str, Any] = {"run_id": run_file.run_id, "digest": run_file.digest, "name": run_file.run.name}
    about |= {"backend": "local", "started": time.time(), "pid": os.getpid(), "folder": str(Path.cwd())}
    settings = run_file.model_dump(mode="json")
    write_json(folder / "run.json", about | {"run_file": settings})
    part = folder / f"{RUN_YAML}.part"
    part.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    part.replace(folder / RUN_YAML)


@contextlib.contextmanager
def _watching(path: Path, watch: Watch | None) -> Iterator[None]:
    """Pass new events to `watch` from a thread, the last ones before this returns."""
    tail = EventTail(path, offset=path.stat().st_size)
    ended = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = ended.wait(TAIL_SECONDS)
            for event in tail.new():
                if watch is not None:
                    watch(event)

    thread = threading.Thread(target=follow, daemon=True, name="watch-progress")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run_pipeline(run_file: RunFile, workspace: Workspace, folder: Path) -> None:
    variables = {"IAR_STATE": str(workspace.state), RUNNER_PID: str(os.getpid())}
    try:
        with environment(variables), sigterm_as_interrupt(), children_ended(), output_to(folder / "log.txt"):
            from kfp import local

            runner = local.SubprocessRunner(use_venv=False)
            root = str(workspace.state / "kfp")
            shutil.rmtree(root, ignore_errors=True)  # what a UI would have shown of the run before
            local.init(runner=runner, pipeline_root=root, workspace_root=root + "-workspace", raise_on_error=True)
            pipeline = importlib.import_module("iar.pipelines.post_training").build(run_file)
            with kfp_mended(folder / "log.txt"):
                pipeline(run_file=run_file.canonical())
    except KeyboardInterrupt:
        raise TemporaryError(f"interrupted{_where(folder)}: run the same command again to continue") from None
    except RuntimeError as error:
        raise _failure(folder) from error


def _failure(folder: Path) -> IarError:
    """Return the failed task's own error, as it wrote it down."""
    log = folder / "log.txt"
    if not (folder / "error.json").is_file():
        return TemporaryError(f"a task was killed{_where(folder)}, perhaps for memory; see {log}")
    told = json.loads((folder / "error.json").read_text(encoding="utf-8"))
    if told["kind"] == "bug":
        return PermanentError(f"{told['task']}: {told['message']}; the traceback is in {log}")
    return next(cls for cls, name in KINDS.items() if name == told["kind"])(f"{told['task']}: {told['message']}")


def _where(folder: Path) -> str:
    states = task_states(read_events(folder / "progress.jsonl")).values()
    running = [state.task for state in states if state.state == "running"]
    return f" at {running[-1]}" if running else ""


def _result(run_file: RunFile, folder: Path, seconds: float) -> RunResult:
    tasks = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "tasks").glob("*.json")]
    refs = {task["task"]: Ref.parse(task["ref"]) for task in tasks}
    report = refs["register"].path / "report.html"
    selection = json.loads((refs["selector"].path / "selection.json").read_text(encoding="utf-8"))
    if not selection["pick"]:
        raise NoFeasibleCandidate(
            f"no feasible candidate: none of {len(selection['verdicts'])} passed the rule "
            f"(tolerance {run_file.select.tolerance_points} points); the reasons are in {report}"
        )
    results = json.loads((refs["register"].path / "results.json").read_text(encoding="utf-8"))
    reused = sum(task["reused"] for task in tasks)
    return RunResult(run_file.run_id, folder, report, results, len(tasks), reused, seconds)
