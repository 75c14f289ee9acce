"""The books of a task: its result goes into the registry and into tracking, once a run."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.records import Lineage, read_records, write_json
from iar.services import activity
from iar.services.progress import Progress
from iar.services.published import note_published, place_of
from iar.services.registry_heads import head_tag, keep_head
from iar.services.registry_records import FINISHED
from iar.services.stage_keys import STAGES
from iar.services.workspace import LINEAGE, STEPS, Manifest, Ref

if TYPE_CHECKING:
    from iar.services.execution import Task
    from iar.services.registry import Registry

MAX_TRACKED_BYTES = 1_000_000


def record(task: "Task", manifest: Manifest, ref: Ref, reused: bool) -> None:
    """Enter the result into registry and tracking, once a run; a marker written last says that it is done."""
    marker = task.run_folder / "tasks" / f"{task.name}.json"
    if not (marker.is_file() and json.loads(marker.read_text())["ref"] == str(ref)):
        registry = task.context(Progress(None, task.name)).registry()
        try:
            id_ = _record_lineage(task, manifest, ref, registry)
            _track(task, manifest, ref.path, registry, id_)
        finally:
            registry.close()
    marker.parent.mkdir(exist_ok=True)
    entry = {"task": task.name, "stage": task.stage, "ref": str(ref), "reused": reused, "seconds": manifest.seconds}
    write_json(marker, entry | {"metrics": finite(manifest.outcome.metrics)})


def _record_lineage(task: "Task", manifest: Manifest, ref: Ref, registry: "Registry") -> str:
    """Enter what the task made; return the id of its activity."""
    begun = activity.begun(task.run_file, task.name, task.parts, task.manifests, manifest.started)
    ended, lineage = manifest.started + manifest.seconds, manifest.outcome.lineage
    known = registry.labels(digest for _, digest in begun.used)
    producer = replace(
        begun, status=FINISHED, seconds=manifest.seconds, **vars(manifest.made_in),
        used=tuple(pair for pair in begun.used if pair[1] in known), made=activity.made(lineage),
        cost=task.cost(manifest.started, ended, finite(manifest.outcome.metrics)),
    )  # fmt: skip
    whole = ref.path / LINEAGE
    registry.record(read_records(whole, Lineage) if whole.is_file() else lineage, producer)
    if task.stage == "qa_build":
        for step in activity.steps(producer, lineage, activity.funnel_of(ref.path)):
            registry.activity(step)
    note_published(registry, place_of(ref.path), ref.digest)
    keep_head(task.workspace.state, registry)
    return producer.id


def _track(task: "Task", manifest: Manifest, folder: Path, registry: "Registry", activity: str) -> None:
    from iar.services.linked_runs import dataset_uses, lineage_tags, link_run
    from iar.services.tracking import Tracker

    steps = folder / STEPS
    lines = steps.read_text(encoding="utf-8").splitlines() if steps.is_file() else []
    small = [path for path in sorted(folder.glob("*.json")) if path.stat().st_size <= MAX_TRACKED_BYTES]
    tracker = Tracker(task.run_file, task.run_file.run_id, task.workspace.state)
    run = tracker.log_stage(
        task.name,
        params=task.parts["settings"],
        metrics=finite(manifest.outcome.metrics),
        steps=[json.loads(line) for line in lines],
        artifacts=small,
        datasets=dataset_uses(registry, manifest.outcome.lineage),
        tags=lineage_tags(manifest.outcome.lineage, activity) | head_tag(registry),
    )
    link_run(registry, activity, tracker.uri, run)
    if STAGES[task.stage].each_run:
        tracker.finish("FINISHED")


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the metrics: what a UI or a database can take."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and math.isfinite(value)}
