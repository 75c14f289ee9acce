"""A training handed to the ranks that carry it out: what they read, what they leave, and where both meet.

JOB/job.json, rows.jsonl     what to train
    result.json              what came out, by the first rank
    error-<rank>.json        what a rank said of its end
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from iar.config import TrainingSection
from iar.errors import ExitCode, IarError, PermanentError, TemporaryError, UserError
from iar.methods.batching import TokenRow
from iar.records import from_json, read_records, to_json, write_json, write_records
from iar.services.adapters import LoraSettings
from iar.services.telemetry import StepLog, TrainingResult, step_note
from iar.services.train_engines import EngineName
from iar.services.workspace import STEPS

JOB, ROWS = "job.json", "rows.jsonl"
RESULT = "result.json"
ERRORS = "error-*.json"
# An error that only says that another rank is gone.
LOST = "lost"
Step = tuple[int, int, str]
"""Optimizer steps done, of how many, and a note: what progress is told of."""


@dataclass(frozen=True)
class TrainingJob:
    """What to train: model folder, settings, seed, output folder, engine, and the adapter where not all weights are.

    `store` is the place in an object store that has the restart points too; "" = none. `keep_masters` writes the fp32
    masters as they are, not in the dtype of the model folder. `keep_epochs`: see epoch_weights.
    `own_disks`: ranks of different nodes share no folder.
    """

    start: Path
    settings: TrainingSection
    seed: int
    out: Path
    engine: EngineName
    adapter: LoraSettings | None = None
    store: str = ""
    keep_masters: bool = False
    keep_epochs: bool = False
    own_disks: bool = False

    def write(self, folder: Path, rows: Sequence[TokenRow], start: str = "", out: str = "") -> None:
        """Write the job and its rows for `read`; `start` and `out` instead of its own folders, where they are given."""
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / ROWS, rows)
        job = {"start": start or str(self.start.resolve()), "out": out or str(self.out.resolve()), "seed": self.seed}
        settings = {name: getattr(self.settings, name) for name in TrainingSection.model_fields}
        adapter = asdict(self.adapter) if self.adapter else None
        job |= {"engine": self.engine, "store": self.store}
        job |= {"keep_masters": self.keep_masters, "keep_epochs": self.keep_epochs}
        write_json(folder / JOB, job | {"own_disks": self.own_disks, "settings": settings, "adapter": adapter})

    @classmethod
    def read(cls, folder: Path) -> "tuple[TrainingJob, list[TokenRow]]":
        """Return the job in a folder, and its rows."""
        job = json.loads((folder / JOB).read_text(encoding="utf-8"))
        settings = TrainingSection.model_validate(job["settings"])
        adapter = LoraSettings(**job["adapter"]) if job["adapter"] else None
        made = cls(
            Path(job["start"]), settings, job["seed"], Path(job["out"]), job["engine"], adapter, job["store"],
            job["keep_masters"], job["keep_epochs"], job["own_disks"],
        )  # fmt: skip
        return made, list(read_records(folder / ROWS, TokenRow))


@dataclass(frozen=True)
class RankEnd:
    """What a rank said of its end: an error's type, LOST, or "bug"."""

    rank: int
    kind: str
    message: str

    @classmethod
    def of(cls, rank: int, error: Exception) -> "RankEnd":
        """Describe the error that ended a rank."""
        known = isinstance(error, IarError)
        kind = type(error).__name__ if known else LOST if _peer_is_gone(error) else "bug"
        return cls(rank, kind, str(error) if known else f"unexpected {type(error).__name__}: {error}")


class LaunchedJob(Protocol):
    """A job as its launcher sees it. `argument` is what the ranks' worker is called with."""

    argument: str

    def put(self) -> None:
        """Put there what the ranks read; what earlier ones said of their end is gone."""

    def finished(self) -> bool:
        """Return whether the result is there, whole."""

    def ends(self) -> list[RankEnd]:
        """Return what ranks said of their end."""

    def steps(self) -> Iterable[Step]:
        """Return the steps that are known since the last call, perhaps only the last of them."""

    def take(self) -> TrainingResult:
        """Have the result in the job's output folder."""


class RankJob(Protocol):
    """A job as one of its ranks sees it."""

    def read(self) -> tuple[TrainingJob, list[TokenRow]]:
        """Return what this rank is to train; what it said of an earlier end is gone."""

    def tell(self, step: int, steps: int, note: str) -> None:
        """Let the launcher know of a step."""

    def keep(self, result: TrainingResult) -> None:
        """Leave the result for the launcher; the first rank does so."""

    def fail(self, end: RankEnd) -> None:
        """Say how this rank ended."""


class JobInFolder:
    """A LaunchedJob in a folder that all ranks see too, as they see its model and its output folder."""

    def __init__(self, folder: Path, job: TrainingJob, rows: Sequence[TokenRow]) -> None:
        self.folder = folder
        self.argument = str(folder)
        self._job, self._rows = job, rows
        self._log = StepLog(job.out / STEPS)

    def put(self) -> None:
        """Write it, and drop what an earlier one left."""
        for pattern in (RESULT, ERRORS):
            for stale in self.folder.glob(pattern):
                stale.unlink()
        self._job.write(self.folder, self._rows)
        self._log.follow()

    def finished(self) -> bool:
        """Return whether the result is there."""
        return (self.folder / RESULT).is_file()

    def ends(self) -> list[RankEnd]:
        """Return what ranks said of their end."""
        return ends_in(self.folder)

    def steps(self) -> Iterable[Step]:
        """Return the steps that the log has since the last call."""
        return [(int(facts["step"]), int(facts["steps"]), step_note(facts)) for facts in self._log.new()]

    def take(self) -> TrainingResult:
        """Return the result, and drop the folder."""
        result = read_result(self.folder)
        shutil.rmtree(self.folder)
        return result


class RankInFolder:
    """A RankJob in a folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._error = folder / ERRORS.replace("*", str(rank))

    def read(self) -> tuple[TrainingJob, list[TokenRow]]:
        """Return the job; an earlier end, before pods were suspended, is over."""
        self._error.unlink(missing_ok=True)
        return TrainingJob.read(self._folder)

    def tell(self, step: int, steps: int, note: str) -> None:
        """Do nothing: the launcher reads the step log."""

    def keep(self, result: TrainingResult) -> None:
        """Write the result; the checkpoint lies where it belongs."""
        write_json(self._folder / RESULT, to_json(result))

    def fail(self, end: RankEnd) -> None:
        """Write the end down; a full disk must not hide the error itself."""
        with contextlib.suppress(OSError):
            write_json(self._error, to_json(end))


def ends_in(folder: Path) -> list[RankEnd]:
    """Return what ranks said of their end in a job's folder."""
    paths = sorted(folder.glob(ERRORS))
    return [from_json(RankEnd, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def read_result(folder: Path) -> TrainingResult:
    """Return what the first rank wrote."""
    return from_json(TrainingResult, json.loads((folder / RESULT).read_text(encoding="utf-8")))


def told_by_ranks(ends: Sequence[RankEnd], log: str) -> IarError | None:
    """Return what ranks wrote down about their end, the most telling first; None where none ended by itself."""
    for kind in (PermanentError, UserError, TemporaryError):
        for end in ends:
            if end.kind == kind.__name__:
                return kind(end.message)
    for end in ends:
        if end.kind != LOST:
            return PermanentError(f"training: rank {end.rank}: {end.message}; the traceback is in {log}")
    return None


def exit_code(error: Exception) -> int:
    """Return the code with which a rank ends for this error; 4 asks for a restart."""
    return int(error.exit_code) if isinstance(error, IarError) else int(ExitCode.BUG)


def _peer_is_gone(error: Exception) -> bool:
    import torch

    lost = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, torch.distributed.DistError) or any(word in str(error) for word in lost)
