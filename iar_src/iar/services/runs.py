"""Where runs stand, read from their folders: what `iar status` shows."""

import json
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.contamination import Evaluation
from iar.records import QAPair, read_records
from iar.services.evaluations import OWN, general_evaluations, own_evaluation
from iar.services.local_run import is_running
from iar.services.progress import read_events, task_states
from iar.services.test_lock import sealed_test
from iar.services.workspace import Ref, Workspace


def find_run(state: Path, run_id_prefix: str = "") -> Path:
    """Return the folder of the run whose id begins so, of the latest run for "". Raises UserError."""
    runs = [path.parent for path in (state / "runs").glob("*/run.json")]
    found = [folder for folder in runs if folder.name.startswith(run_id_prefix)]
    if not found:
        known = ", ".join(sorted(folder.name for folder in runs)) or "none"
        raise UserError(f"no run {run_id_prefix!r} in {state}; runs there: {known}")
    return max(found, key=lambda folder: float(_read(folder / "run.json")["started"]))


def read_status(folder: Path) -> dict[str, Any]:
    """Return a run's state, its stages with seconds and reuse, its error and its results, as JSON data.

    `state` is running, done, no_feasible_candidate, failed or interrupted.
    """
    about, error = _read(folder / "run.json"), _read(folder / "error.json")
    finished = {path.stem: _read(path) for path in (folder / "tasks").glob("*.json")}
    stages = []
    for task in task_states(read_events(folder / "progress.jsonl")).values():
        entry = finished.get(task.task, {})
        stage = {"task": task.task, "stage": entry.get("stage", ""), "ref": entry.get("ref", "")}
        numbers = {"done": task.done, "total": task.total, "note": task.note}
        stages.append(stage | numbers | {"state": task.state, "seconds": task.seconds, "reused": task.reused})
    ended = any(stage["task"] == "register" and stage["state"] == "done" for stage in stages)
    artifact = Ref.parse(finished["register"]["ref"]).path if ended else None
    return {
        "run_id": about["run_id"],
        "state": _state(folder, error, ended),
        "stages": stages,
        "error": error or None,
        "results": _read(artifact / "results.json") if artifact else None,
        "report": str(artifact / "report.html") if artifact else None,
    }


def run_evaluations(run_file: RunFile) -> list[Evaluation]:
    """Return all that models of a run are asked: its own questions, unread until they are made, and the suites."""
    folder = Workspace.of(run_file).run(run_file.run_id)
    made = _read(folder / "tasks" / "qa-build.json")
    if made:
        data = Ref.parse(made["ref"]).path
        own = [own_evaluation("validation", read_records(data / "validation.jsonl", QAPair)), sealed_test(data)]
    else:
        own = [Evaluation(split, (), unread=f"run {run_file.run_id} has made no questions yet") for split in OWN]
    return [*own, *general_evaluations(run_file)]


def _state(folder: Path, error: dict[str, Any], ended: bool) -> str:
    if error.get("kind") == "no_feasible_candidate":
        return "no_feasible_candidate"
    if error:
        return "interrupted" if error["message"].startswith("interrupted") else "failed"
    if ended:
        return "done"
    return "running" if is_running(folder.parent.parent) else "interrupted"


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return data
