"""The document sets that a model had learned before this run, as the task `earlier-run` lays them out.

FOLDER/sets.jsonl      one line a set, the oldest first
FOLDER/N/checkpoint/   theta_IA after set N: what it changed since set N-1, or since theta_0, is the Delta of that set
FOLDER/N/data/         the questions and documents of set N
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from iar.records import EarlierSet, RetainedPair, read_records

ROLE = "earlier"
"""The role of that folder among a stage's inputs, and the name of its newest checkpoint as a reference."""
SETS, RETAINED = "sets.jsonl", "retention.jsonl"


@dataclass(frozen=True)
class EarlierSets:
    """The sets in a folder; none where a run starts from theta_0."""

    folder: Path | None = None

    @classmethod
    def of(cls, inputs: Mapping[str, Path]) -> "EarlierSets":
        """Return those among a stage's inputs."""
        return cls(inputs.get(ROLE))

    def __iter__(self) -> Iterator[EarlierSet]:
        return read_records(self.folder / SETS, EarlierSet) if self.folder else iter(())

    @property
    def checkpoints(self) -> list[Path]:
        """The folder of theta_IA after each set."""
        return [place / "checkpoint" for place in self._places]

    @property
    def data(self) -> list[Path]:
        """The folder of questions and documents of each set."""
        return [place / "data" for place in self._places]

    @property
    def _places(self) -> list[Path]:
        return [self.folder / str(number) for number, _ in enumerate(self, 1)] if self.folder else []


NO_SETS = EarlierSets()


def start_of(inputs: Mapping[str, Path]) -> Path:
    """Return the checkpoint that the training of a run begins with: theta_IA of the last earlier set, else theta_0."""
    return [inputs["base"], *EarlierSets.of(inputs).checkpoints][-1]


def retained_questions(data: Path) -> list[RetainedPair]:
    """Return the questions about earlier sets that a dataset keeps; [] where there was none."""
    return list(read_records(data / RETAINED, RetainedPair)) if (data / RETAINED).is_file() else []
