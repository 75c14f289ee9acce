"""Run one stage as one task: reuse its finished artifact, or make, publish and record it."""

import contextlib
import errno
import fcntl
import importlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import TemporaryError, UserError
from iar.methods.digest import digest_json
from iar.records import Outcome, write_json
from iar.services.progress import Progress
from iar.services.stage_keys import STAGES, key_parts
from iar.services.workspace import Context, Manifest, Ref, Workspace, stored_files

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
MAX_TRACKED_BYTES = 1_000_000


@dataclass(frozen=True)
class Finished:
    """A task that has a result: its reference, what the stage reported, whether it was there before."""

    ref: Ref
    outcome: Outcome
    reused: bool


@dataclass(frozen=True)
class Task:
    """One stage to run with its inputs, named as people read it."""

    name: str
    stage: str
    run_file: RunFile
    workspace: Workspace
    inputs: dict[str, Path]
    parts: dict[str, Any]
    shard: int
    shards: int
    recipe: str

    @property
    def key(self) -> str:
        """The identity of the result."""
        return digest_json(self.parts)

    @property
    def run_folder(self) -> Path:
        """Where this run keeps its books."""
        return self.workspace.run(self.run_file.run_id)

    def context(self, progress: Progress) -> Context:
        """What the stage sees of this task."""
        file = self.run_file
        state, url = self.workspace.state, file.register.registry_url
        seed = file.run.seed
        return Context(
            file.run_id, self.name, progress, state, seed, self.shard, self.shards, url, self.recipe, file.platform
        )


def execute(
    stage: str, run_file_text: str, inputs: Mapping[str, str], name: str = "", shard: int = 1, shards: int = 1,
    recipe: str = "",
) -> Finished:  # fmt: skip
    """Return the stage's artifact, made now or before. `inputs` are references by role, "" = not given.

    Every pipeline component is this call. Raises what the stage raises; a full disk is a UserError.
    """
    task = _task(stage, run_file_text, inputs, name, shard, shards, recipe)
    task.run_folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(task.run_folder / "progress.jsonl", task.name)
    progress.start()
    with _full_disk_explained(task):
        manifest = task.workspace.find(task.name, task.key)
        reused = manifest is not None
        manifest = manifest or _produce(task, progress)
        ref = task.workspace.ref(task.name, task.key)
        _record(task, manifest, ref, reused)
    progress.done(manifest.seconds, reused)
    return Finished(ref, manifest.outcome, reused)


def _task(
    stage: str, run_file_text: str, inputs: Mapping[str, str], name: str, shard: int, shards: int, recipe: str
) -> Task:
    run_file = RunFile.model_validate_json(run_file_text)
    refs = {role: Ref.parse(text) for role, text in inputs.items() if text}
    contents = {role: ref.open().content for role, ref in refs.items()}
    parts = key_parts(stage, run_file, contents, shard, shards, recipe)
    paths = {role: ref.path for role, ref in refs.items()}
    name = name or stage.replace("_", "-")
    return Task(name, stage, run_file, Workspace.of(run_file), paths, parts, shard, shards, recipe)


def _produce(task: Task, progress: Progress) -> Manifest:
    work = task.workspace.work(task.name, task.key)
    work.mkdir(parents=True, exist_ok=True)
    with _only_writer(work):
        started = time.time()
        stage = importlib.import_module(f"iar.stages.{task.stage}")
        outcome: Outcome = stage.run(task.run_file, task.inputs, work, task.context(progress))
        manifest = Manifest(
            task.name, task.stage, task.key, task.parts, task.parts["code"], started, time.time() - started,
            stored_files(work), outcome,
        )  # fmt: skip
        task.workspace.publish(manifest)
    return manifest


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder; raises TemporaryError while another process makes the same artifact."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TemporaryError(f"{folder} is being written by another process: run again when it is done") from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _full_disk_explained(task: Task) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        state = task.workspace.state
        raise UserError(f"no space left for {state}: free some, then run the same command") from error


def _record(task: Task, manifest: Manifest, ref: Ref, reused: bool) -> None:
    """Enter the result into registry and tracking, once a run; a marker written last says that it is done."""
    marker = task.run_folder / "tasks" / f"{task.name}.json"
    if not (marker.is_file() and json.loads(marker.read_text())["ref"] == str(ref)):
        _record_lineage(task, manifest)
        _track(task, manifest, ref.path)
    marker.parent.mkdir(exist_ok=True)
    entry = {"task": task.name, "stage": task.stage, "ref": str(ref), "reused": reused, "seconds": manifest.seconds}
    write_json(marker, entry | {"metrics": finite(manifest.outcome.metrics)})


def _record_lineage(task: Task, manifest: Manifest) -> None:
    from iar.services.registry import Producer

    run_file = task.run_file
    producer = Producer(
        run_file.run_id, task.name, manifest.code, digest_json(task.parts["settings"]), run_file.run.seed,
        manifest.started, manifest.seconds,
    )  # fmt: skip
    registry = task.context(Progress(None, task.name)).registry()
    try:
        registry.record(manifest.outcome.lineage, producer)
    finally:
        registry.close()


def _track(task: Task, manifest: Manifest, folder: Path) -> None:
    from iar.services.tracking import Tracker

    steps = folder / "steps.jsonl"
    lines = steps.read_text(encoding="utf-8").splitlines() if steps.is_file() else []
    small = [path for path in sorted(folder.glob("*.json")) if path.stat().st_size <= MAX_TRACKED_BYTES]
    tracker = Tracker(task.run_file, task.run_file.run_id, task.workspace.state)
    tracker.log_stage(
        task.name,
        params=task.parts["settings"],
        metrics=finite(manifest.outcome.metrics),
        steps=[json.loads(line) for line in lines],
        artifacts=small,
    )
    if STAGES[task.stage].each_run:
        tracker.finish("FINISHED")


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the metrics: what a UI or a database can take."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and math.isfinite(value)}
