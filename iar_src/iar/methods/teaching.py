"""What every teacher hands back, rule-based or LLM: the records of the six steps and what they dropped."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from iar.records import (
    Anchor,
    Chunk,
    CrossDocumentPair,
    Document,
    FunnelStep,
    QAPair,
    Reject,
    Retelling,
    RewriteInput,
)

QUESTION_TYPES = (
    "fact_extraction",
    "mechanism_explanation",
    "design_motivation",
    "conditions_and_constraints",
    "limitations_and_tradeoffs",
    "comparison_and_relation",
)


@dataclass(frozen=True)
class TeacherOutput:
    """A teacher's work over all chunks.

    `pairs` have an empty `split`; it is set after deduplication. `funnel` holds the teacher's own
    steps in order (anchors, applicable, questions, verified, answered).
    """

    anchors: list[Anchor]
    pairs: list[QAPair]
    rewrite_inputs: list[RewriteInput]
    rejects: list[Reject]
    funnel: list[FunnelStep]


@dataclass(frozen=True)
class FurtherOutput:
    """What only a language model writes: questions over two documents, and retellings; empty from rules."""

    cross: list[CrossDocumentPair] = field(default_factory=list)
    retellings: list[Retelling] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    funnel: list[FunnelStep] = field(default_factory=list)


class Teacher(Protocol):
    """What the QA build needs of a teacher."""

    name: str

    def build(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors_per_chunk: int,
        seed: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> TeacherOutput:
        """Return everything made of `chunks`, at most so many anchors a chunk, and everything dropped."""
        ...

    def further(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors: Sequence[Anchor],
        held_out: Sequence[Chunk],
        seed: int,
        count_tokens: Callable[[str], int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> FurtherOutput:
        """Return questions over two documents about the chunks `held_out`, and retellings of the documents."""
        ...


def funnel_step(step: str, unit: str, kept: int, rejects: Iterable[Reject]) -> FunnelStep:
    """Return the step's account: what was kept, and what `rejects` of this very step dropped by reason and outcome."""
    ours = [reject for reject in rejects if reject.step == step]
    dropped, outcomes = (Counter(getattr(reject, name) for reject in ours) for name in ("reason", "outcome"))
    return FunnelStep(
        step, unit, kept + dropped.total(), kept, dict(sorted(dropped.items())), dict(sorted(outcomes.items()))
    )
