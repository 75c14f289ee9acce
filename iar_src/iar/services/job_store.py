"""A training's job in an object store, for pods that share no folder with their launcher, nor with each other.

PLACE/job/<digest>/                  job.json, rows.jsonl: what to train
      start/<digest>/                the model to start from, where it is no artifact of the store
      result/<digest of the job>/    checkpoint, steps.jsonl, result.json, epochs where kept; its manifest is
                                     written last, and once
      error-<rank>.json              what a rank said of its end
      progress.json                  one of the last steps

Job and start are named by their bytes, so what is there is what is meant. PLACE is as
s3://bucket/prefix/trainings/inject-0123, and goes when the artifact is in the store.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from iar.config import RunSection
from iar.errors import IarError, TemporaryError
from iar.methods.batching import TokenRow
from iar.methods.digest import digest_file
from iar.records import from_json, to_json, write_json
from iar.services.epoch_weights import EPOCHS
from iar.services.linking import link_file, link_tree
from iar.services.object_store import Bucket
from iar.services.store import ARTIFACTS, StoredRef, bring, content_ref
from iar.services.store_transfer import file_list, get_folder, listed_files, put_folder
from iar.services.telemetry import TrainingResult
from iar.services.training_job import ERRORS, JOB, RESULT, RankEnd, Step, TrainingJob, read_result
from iar.services.workspace import KEY_DIGITS, MANIFEST, STEPS, TRAININGS, read_manifest, stored_files

PROGRESS = "progress.json"
# A launcher looks about as often.
TELL_SECONDS = 10.0


def say(done: float, total: float, note: str) -> None:
    """Say in a pod's log that its input or output has come further."""
    print(f"{note}: {done:.0f} of {total:.0f} files", file=sys.stderr)


class _Place:
    """What launcher and ranks know of a job in a store: its place, and the digest that names it there."""

    def __init__(self, place: str, argument: str) -> None:
        self.argument = argument
        self.bucket = Bucket(place)
        self.digest = argument.rpartition("@sha256:")[2]

    @property
    def result(self) -> str:
        """The name of the result below the place."""
        return f"result/{self.digest[:KEY_DIGITS]}"

    def error(self, rank: int) -> str:
        """The name of what a rank said of its end."""
        return ERRORS.replace("*", str(rank))


class JobInStore(_Place):
    """A LaunchedJob in a store; `folder` is where it is written first."""

    def __init__(self, folder: Path, job: TrainingJob, rows: Sequence[TokenRow]) -> None:
        self._job, self._folder, self._told = job, folder, 0
        self._start, self._start_ref = _start_of(job)
        shutil.rmtree(folder, ignore_errors=True)
        replace(job, own_disks=True).write(folder, rows, self._start_ref, job.store)
        super().__init__(job.store, content_ref(job.store, "job", file_list(stored_files(folder))))

    def put(self) -> None:
        """Upload the job, and its start where that is no artifact; what earlier ranks said is gone."""
        self.bucket.delete([*self.bucket.sizes(ERRORS.partition("*")[0]), PROGRESS])
        if self._start is not None:
            self._upload(self._start, self._start_ref)
        self._upload(self._folder, self.argument)

    def finished(self) -> bool:
        """Return whether the result is there, whole."""
        return self.bucket.read(f"{self.result}/{MANIFEST}") is not None

    def ends(self) -> list[RankEnd]:
        """Return what ranks said of their end."""
        found = [self.bucket.read(name) for name in sorted(self.bucket.sizes(ERRORS.partition("*")[0]))]
        return [from_json(RankEnd, json.loads(raw)) for raw in found if raw is not None]

    def steps(self) -> Iterator[Step]:
        """Yield the last step that is known, if it is a new one; a store that is away ends no training."""
        try:
            raw = self.bucket.read(PROGRESS)
        except TemporaryError as error:
            print(f"{error}; the training goes on", file=sys.stderr)
            return
        step, steps, note = json.loads(raw) if raw else (0, 0, "")
        if step > self._told:
            self._told = step
            yield step, steps, note

    def take(self) -> TrainingResult:
        """Bring what the ranks left into the job's output folder, verified; the store keeps its own."""
        raw = self.bucket.read(f"{self.result}/{MANIFEST}")
        assert raw is not None
        folder = self._job.out / "result"
        get_folder(self.bucket, self.result, raw, listed_files(raw), folder, say)
        result = read_result(folder)
        for name in ("checkpoint", EPOCHS):
            shutil.rmtree(self._job.out / name, ignore_errors=True)
        for name in ("checkpoint", STEPS, EPOCHS):
            if (folder / name).exists():
                (folder / name).replace(self._job.out / name)
        for done in (folder, self._folder):
            shutil.rmtree(done)
        return result

    def _upload(self, folder: Path, ref: str) -> None:
        name = ref.rpartition("@sha256:")[0].removeprefix(f"{self.bucket.place}/")
        files = stored_files(folder)
        put_folder(self.bucket, name, folder, files, file_list(files), say)


class RankInStore(_Place):
    """A RankJob in a store.

    Its files lie below the state folder of this machine: fetched once, by the first process that wants them.
    """

    def __init__(self, argument: str, rank: int) -> None:
        place = argument.rpartition("/job/")[0]
        super().__init__(place, argument)
        self._rank = rank
        state = Path(os.environ.get("IAR_STATE") or RunSection.model_fields["state"].default)
        self._fetched = state / "fetch"
        self._out = state / "work" / place.rpartition(f"/{TRAININGS}/")[2]
        self._teller: threading.Thread | None = None
        self._told_at = -TELL_SECONDS

    def read(self) -> tuple[TrainingJob, list[TokenRow]]:
        """Return the job with its start fetched; what this rank said of an earlier end is gone."""
        self.bucket.delete([self.error(self._rank)])
        folder = bring(self.argument, self._fetched, say)
        job, rows = TrainingJob.read(folder)
        ref, _, inside = json.loads((folder / JOB).read_text(encoding="utf-8"))["start"].partition("#")
        start = bring(ref, self._fetched, say) / inside
        self._out.mkdir(parents=True, exist_ok=True)
        return replace(job, start=start, out=self._out), rows

    def tell(self, step: int, steps: int, note: str) -> None:
        """Let the launcher know of a step, by a thread: the training waits for no network."""
        now = time.monotonic()
        if now - self._told_at < TELL_SECONDS or (self._teller and self._teller.is_alive()):
            return
        self._told_at = now
        self._teller = threading.Thread(target=self._tell, args=((step, steps, note),), daemon=True)
        self._teller.start()

    def keep(self, result: TrainingResult) -> None:
        """Upload what was made, the result last; of two pods that have the same job the first one's counts."""
        folder = self._out / "result"
        link_tree(self._out / "checkpoint", folder / "checkpoint")
        link_file(self._out / STEPS, folder / STEPS)
        if (self._out / EPOCHS).is_dir():
            link_tree(self._out / EPOCHS, folder / EPOCHS)
        write_json(folder / RESULT, to_json(result))
        files = stored_files(folder)
        put_folder(self.bucket, self.result, folder, files, file_list(files), say)

    def fail(self, end: RankEnd) -> None:
        """Say how this rank ended; a store that fails too leaves it to the log."""
        try:
            self.bucket.write(self.error(end.rank), json.dumps(to_json(end)).encode())
        except IarError as error:
            print(error, file=sys.stderr)

    def _tell(self, step: Step) -> None:
        try:
            self.bucket.write(PROGRESS, json.dumps(step).encode())
        except IarError as error:
            print(f"{error}; the training goes on", file=sys.stderr)


def _start_of(job: TrainingJob) -> tuple[Path | None, str]:
    """Return the reference of the model that a job starts from, and its folder where it must be uploaded first.

    `#checkpoint` after a reference names the folder in it.
    """
    store = job.store.partition(f"/{TRAININGS}/")[0]
    for folder in (job.start.resolve(), job.start.resolve().parent):
        if (folder / MANIFEST).is_file():
            manifest, local = read_manifest(folder), (folder / MANIFEST).read_bytes()
            there = f"{ARTIFACTS}/{manifest.task}/{manifest.key[:KEY_DIGITS]}/{MANIFEST}"
            if Bucket(store).read(there) == local:
                ref = StoredRef(store, manifest.task, manifest.key, digest_file(folder / MANIFEST))
                inside = job.start.resolve().relative_to(folder).as_posix()
                return None, f"{ref}#{'' if inside == '.' else inside}"
    return job.start, content_ref(job.store, "start", file_list(stored_files(job.start)))
