"""The candidates of one run: what `iar candidates` lists, and builds again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.merge_grid import SETS
from iar.records import Candidate, read_records, to_json
from iar.services.candidates import CANDIDATES
from iar.services.earlier_sets import NO_SETS, EarlierSets
from iar.services.merge_engines import ParentFolders, rebuild_candidates
from iar.services.merge_stream import ReportProgress
from iar.services.workspace import Ref, Workspace

COLUMNS = ("candidate", "changed", "to theta_0", "to theta_IA", "weights", "SHA-256", "note")


def run_candidates(run_file: RunFile) -> list[dict[str, Any]]:
    """Return each candidate of a run as its record, with `picked`, and `folder`, "" where its weights are not kept.

    Raises UserError where the run has made none yet.
    """
    picked = _selection(run_file).get("pick", "")
    rows = []
    for artifact, candidate in _candidates(run_file):
        folder = artifact / candidate.id
        kept = any(folder.glob("*.safetensors"))
        rows.append(to_json(candidate) | {"picked": candidate.id == picked, "folder": str(folder) if kept else ""})
    return rows


def build(run_file: RunFile, name: str, out: Path | None, report: ReportProgress) -> Path:
    """Make a candidate of a run again, with the recorded bits, and return its folder, `out` where that is given.

    Raises UserError for an unknown name or a parent that is gone, PermanentError where other bits come out.
    """
    if out and out.exists():
        raise UserError(f"--output {out}: exists already; name a new folder")
    found = {candidate.id: (artifact, candidate) for artifact, candidate in _candidates(run_file)}
    if name not in found:
        raise UserError(f"no candidate {name!r} in run {run_file.run_id}; there are {', '.join(found)}")
    base, tuned = (_artifact(run_file, task) for task in ("base-model", "align"))
    final = out or Workspace.of(run_file).state / "candidates" / run_file.run_id / name
    part = final.with_name(f"{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    artifact, candidate = found[name]
    before = EarlierSets(_artifact(run_file, "earlier-run")) if candidate.operator == SETS else NO_SETS
    parents = ParentFolders(base, tuned / "checkpoint", tuple(before.checkpoints))
    rebuild_candidates(run_file, parents, [candidate], part, artifact, report)
    shutil.rmtree(final, ignore_errors=True)
    (part / name).rename(final)
    part.rmdir()
    return final


def table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of COLUMNS as text."""
    return [
        (
            row["id"],
            f"{row['changed_share']:.1%}",
            f"{row['distance_to_base']:.3f}",
            f"{row['distance_to_tuned']:.3f}",
            "kept" if row["folder"] else "recipe",
            row["digest"][:12],
            "the pick" if row["picked"] else f"same as {row['duplicate_of']}" if row["duplicate_of"] else "",
        )
        for row in rows
    ]


def _candidates(run_file: RunFile) -> Iterator[tuple[Path, Candidate]]:
    """Yield the candidates of all tasks with their artifacts, task by task."""
    tasks = [f"merge-candidate-{shard}" for shard in range(1, run_file.platform.candidate_shards + 1)]
    for artifact in [_artifact(run_file, task) for task in tasks]:
        for candidate in read_records(artifact / CANDIDATES, Candidate):
            yield artifact, candidate


def _artifact(run_file: RunFile, task: str) -> Path:
    """Return the artifact that a task of the run made. Raises UserError where there is none."""
    marker = Workspace.of(run_file).run(run_file.run_id) / "tasks" / f"{task}.json"
    if not marker.is_file():
        raise UserError(f"run {run_file.run_id} has not finished {task}; run the run file first")
    ref = Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"])
    ref.open()
    return ref.path


def _selection(run_file: RunFile) -> dict[str, Any]:
    try:
        path = _artifact(run_file, "selector") / "selection.json"
    except UserError:  # the run is not as far
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")))
