"""The process of one pipeline task: run the stage, show its outcome, end with the right exit code."""

import contextlib
import sys
import traceback
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from iar.config import RunFile
from iar.errors import ExitCode, IarError, NoFeasibleCandidate, PermanentError, TemporaryError, UserError
from iar.methods.one_page import with_lineage
from iar.records import write_json
from iar.services.execution import execute
from iar.services.guards import end_with_runner
from iar.services.linked_runs import artifact_metadata
from iar.services.progress import Progress
from iar.services.task_books import finite
from iar.services.task_settings import hand_on
from iar.services.workspace import Workspace

METADATA_KEY = "iar"
KINDS: dict[type[IarError], str] = {
    UserError: "user_error",
    TemporaryError: "temporary",
    PermanentError: "permanent",
    NoFeasibleCandidate: "no_feasible_candidate",
}


class MetricsOutput(Protocol):
    """The part of kfp.dsl.Metrics that a component uses."""

    def log_metric(self, metric: str, value: float) -> None:
        """Show one number in the UI."""


class FileOutput(Protocol):
    """The part of kfp.dsl.Markdown, kfp.dsl.HTML and kfp.dsl.Artifact that a component uses."""

    path: str
    metadata: dict[str, Any]


def run_component(
    stage: str, run_file: str, inputs: Mapping[str, str | Sequence[str]], metrics: MetricsOutput, summary: FileOutput,
    name: str = "", shard: int = 1, shards: int = 1, page: FileOutput | None = None, recipe: str = "",
    task_config: Mapping[str, Any] | None = None, job: FileOutput | None = None, frontier: FileOutput | None = None,
) -> str:  # fmt: skip
    """Execute a stage inside a pipeline component, show its outcome in the UI, return its reference.

    A list of references under a role becomes the roles <role>_1, <role>_2, ... `task_config` are the fields of a
    dsl.TaskConfig, for the job that the stage may launch; `job` shows its manifest.
    An error ends the process with its exit code and one line, written to the run's error.json too.
    """
    end_with_runner()
    hand_on(task_config or {}, job.path if job else "")
    try:
        finished = execute(stage, run_file, dict(_by_role(inputs)), name, shard, shards, recipe)
    except Exception as error:
        raise SystemExit(_report(error, name or _task_name(stage), run_file)) from error
    for metric, value in finite(finished.outcome.metrics).items():
        metrics.log_metric(metric, value)
    Path(summary.path).write_text(finished.outcome.markdown, encoding="utf-8")
    summary.metadata[METADATA_KEY] = artifact_metadata(
        RunFile.model_validate_json(run_file).run_id, name or _task_name(stage), finished.handed_on,
        finished.outcome.lineage,
    )  # fmt: skip
    if page is not None:
        Path(page.path).write_text(_page(finished.ref.path), encoding="utf-8")
    if frontier is not None:
        Path(frontier.path).write_text(_image_page(finished.ref.path / "frontier.png"), encoding="utf-8")
    return finished.handed_on


def _task_name(stage: str) -> str:
    return stage.replace("_", "-")


def _page(artifact: Path) -> str:
    """Return the report as the UI shows it, with nothing beside it to link to."""
    beside = artifact / "lineage.html"
    lineage = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    return with_lineage((artifact / "report.html").read_text(encoding="utf-8"), lineage)


def _image_page(image: Path) -> str:
    """Return a page with an image in it: the UI shows pages, and no images by themselves."""
    text = b64encode(image.read_bytes()).decode()
    return f'<!doctype html><title>{image.stem}</title><img alt="{image.stem}" src="data:image/png;base64,{text}">\n'


def _by_role(inputs: Mapping[str, str | Sequence[str]]) -> Iterator[tuple[str, str]]:
    for role, given in inputs.items():
        if isinstance(given, str):
            yield role, given
        else:
            yield from ((f"{role}_{number}", ref) for number, ref in enumerate(given, 1))


def _report(error: Exception, task: str, run_file_text: str) -> int:
    """Write down why a task failed; return the exit code. Unexpected errors keep their traceback."""
    expected = isinstance(error, IarError)
    if not expected:
        traceback.print_exc()
    message = str(error) if expected else f"unexpected {type(error).__name__}: {error}"
    print(f"{task}: {message}", file=sys.stderr)
    run_file = RunFile.model_validate_json(run_file_text)
    folder = Workspace.of(run_file).run(run_file.run_id)
    with contextlib.suppress(OSError):  # a full disk must not hide the error itself
        write_error(folder, task, error, message)
        Progress(folder / "progress.jsonl", task).failed(message)
    if (folder / "tasks").is_dir():  # else tracking knows nothing of this run
        _track_failure(run_file)
    return int(error.exit_code) if isinstance(error, IarError) else int(ExitCode.BUG)


def _track_failure(run_file: RunFile) -> None:
    from iar.services.tracking import Tracker

    with contextlib.suppress(IarError):  # a tracking server that is down must not hide the error itself
        Tracker(run_file, run_file.run_id, Workspace.of(run_file).state).finish("FAILED")


def write_error(folder: Path, task: str, error: Exception, message: str) -> None:
    """Write a run's error.json: {task, kind, message, exit_code}."""
    code = error.exit_code if isinstance(error, IarError) else ExitCode.BUG
    kind = KINDS[type(error)] if isinstance(error, IarError) else "bug"
    write_json(folder / "error.json", {"task": task, "kind": kind, "message": message, "exit_code": int(code)})
