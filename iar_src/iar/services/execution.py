"""Run one stage as one task: reuse its finished artifact, or make, publish and record it."""

import contextlib
import errno
import fcntl
import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import TemporaryError, UserError
from iar.methods.digest import digest_json
from iar.records import Outcome
from iar.services import activity
from iar.services.attempts import Tries
from iar.services.file_manifests import with_files
from iar.services.hub_commits import pin
from iar.services.progress import Progress
from iar.services.stage_keys import STAGES, key_parts
from iar.services.store import Store, StoredRef, is_stored
from iar.services.store_transfer import Report
from iar.services.surroundings import surroundings
from iar.services.task_books import record
from iar.services.withheld import retracted_now, with_retractions
from iar.services.workspace import Context, Manifest, Ref, Workspace, stored_files

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
READS_DOCUMENTS = ("qa_build", "qa_documents")


@dataclass(frozen=True)
class Finished:
    """A task that has a result: its local folder, what the stage reported, whether it was there before.

    `handed_on` is what other tasks are given: the artifact's reference in the store, if there is one, else the local.
    """

    ref: Ref
    outcome: Outcome
    reused: bool
    handed_on: str


@dataclass(frozen=True)
class Task:
    """One stage to run with its inputs by role, as references, named as people read it.

    `shown` is the run file that the stage is given: with a commit where `run_file` has a branch of the hub.
    """

    name: str
    stage: str
    run_file: RunFile
    shown: RunFile
    workspace: Workspace
    store: Store | None
    inputs: Mapping[str, str]
    manifests: Mapping[str, Manifest]
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

    @property
    def base(self) -> str:
        """Digest of the theta_0 that the task is given, "" where it is given none."""
        made = self.manifests["base"].outcome.lineage if "base" in self.manifests else ()
        return next((entry.digest for entry in made if entry.kind == "checkpoint"), "")

    def context(self, progress: Progress) -> Context:
        """What the stage sees of this task."""
        file = self.run_file
        state, url = self.workspace.state, file.register.registry_url
        seed = file.run.seed
        return Context(
            file.run_id, self.name, progress, state, seed, self.shard, self.shards, url, self.recipe, file.platform,
            file.run.store,
        )  # fmt: skip

    def folders(self, report: Report) -> dict[str, Path]:
        """Return the local folders of the inputs, fetched where only the store has them."""
        return {role: _folder(text, self.workspace, report) for role, text in self.inputs.items()}

    def cost(self, started: float, ended: float, metrics: Mapping[str, float]) -> dict[str, float]:
        """What this task took between two Unix times, by unit."""
        return activity.cost(self.run_file, self.stage, self.manifests.values(), started, ended, metrics)


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
        manifest = _finished(task, progress.update)
        reused = manifest is not None
        if manifest is None:
            manifest = _produce(task, progress)
            if task.store:
                manifest = task.store.keep(manifest, progress.update)
                if task.run_file.platform.backend == "kubeflow":
                    task.store.forget_training(task.name, task.key)
        ref = task.workspace.ref(task.name, task.key)
        record(task, manifest, ref, reused)
        if stage == "register" and task.run_file.recover.keep == "pick":
            _release_candidates(task)
    progress.done(manifest.seconds, reused)
    handed_on = str(task.store.ref(task.name, task.key) if task.store else ref)
    return Finished(ref, manifest.outcome, reused, handed_on)


def _task(
    stage: str, run_file_text: str, inputs: Mapping[str, str], name: str, shard: int, shards: int, recipe: str
) -> Task:
    run_file = RunFile.model_validate_json(run_file_text)
    workspace = Workspace.of(run_file)
    given = {role: text for role, text in inputs.items() if text}
    manifests = {role: _manifest(text, workspace) for role, text in given.items()}
    contents = {role: manifest.content for role, manifest in manifests.items()}
    name, store = name or stage.replace("_", "-"), Store.of(run_file, workspace)
    read = {key: commit for one in manifests.values() for key, commit in one.key_parts.get("hub", {}).items()}
    shown, commits, lines = pin(run_file, STAGES[stage].of(recipe).hub, workspace.state, read)
    for line in lines:
        print(line, file=sys.stderr)
    parts = key_parts(stage, run_file, contents, shard, shards, recipe) | ({"hub": commits} if commits else {})
    if stage in READS_DOCUMENTS:
        dataset = workspace.artifact(name, digest_json(parts))
        parts = with_retractions(parts, dataset, retracted_now(workspace.registry_url(run_file)))
    return Task(name, stage, run_file, shown, workspace, store, given, manifests, parts, shard, shards, recipe)


def _manifest(reference: str, workspace: Workspace) -> Manifest:
    """Return what an input says of itself, without its files where only the store has them."""
    if not is_stored(reference):
        return Ref.parse(reference).open()
    ref = StoredRef.parse(reference)
    return Store(ref.place, workspace).manifest(ref)


def _folder(reference: str, workspace: Workspace, report: Report) -> Path:
    if not is_stored(reference):
        return Ref.parse(reference).path
    ref = StoredRef.parse(reference)
    return Store(ref.place, workspace).open(ref, report)


def _finished(task: Task, report: Report) -> Manifest | None:
    """Return the artifact that is there already, in the state folder or in the store."""
    if task.store:
        return task.store.find(task.name, task.key, report)
    return task.workspace.find(task.name, task.key)


def _produce(task: Task, progress: Progress) -> Manifest:
    work = task.workspace.work(task.name, task.key)
    work.mkdir(parents=True, exist_ok=True)
    tries = Tries(task.workspace, task.workspace.registry_url(task.run_file))
    tries.settle()
    begun = activity.begun(task.run_file, task.name, task.parts, task.manifests, time.time())
    with _only_writer(work), tries.noted(begun, lambda ended: task.cost(begun.started, ended, {})) as succeeded:
        inputs = task.folders(progress.update)
        started = time.time()
        stage = importlib.import_module(f"iar.stages.{task.stage}")
        outcome: Outcome = stage.run(task.shown, inputs, work, task.context(progress))
        seconds, files = time.time() - started, stored_files(work)
        outcome = replace(outcome, lineage=with_files(outcome.lineage, work, files, task.base))
        manifest = Manifest(
            task.name, task.stage, task.key, task.parts, task.parts["code"], started, seconds, files, outcome,
            surroundings(),
        )  # fmt: skip
        succeeded()
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


def _release_candidates(task: Task) -> None:
    """Remove the weights of all candidates but the pick, now that the run's results are recorded."""
    from iar.services.candidates import release_all_but_pick

    registry = task.context(Progress(None, task.name)).registry()
    try:
        release_all_but_pick(task.inputs, task.workspace, task.store, registry)
    finally:
        registry.close()
