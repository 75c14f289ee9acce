"""What every teacher hands back, rule-based or LLM: the records of the six steps and what they dropped."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol, TypeVar

from iar.methods.shared_anchors import Crossing
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

BOTH = "question over two documents"
"""What the steps of cross-document questions count."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class TeacherOutput:
    """A teacher's six steps over some chunks, and the rewrite inputs of their documents.

    `pairs` have an empty `split`; it is set after deduplication. `funnel` holds the teacher's own
    steps in order (anchors, applicable, questions, verified, answered).
    """

    anchors: list[Anchor]
    pairs: list[QAPair]
    rewrite_inputs: list[RewriteInput]
    rejects: list[Reject]
    funnel: list[FunnelStep]


@dataclass(frozen=True)
class Retold:
    """A teacher's retellings of documents, and what it dropped by document id; empty from rules."""

    retellings: list[Retelling] = field(default_factory=list)
    rejects: dict[str, list[Reject]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Crossed:
    """A teacher's questions over two documents, what it dropped on the way, and the account of it; empty from rules."""

    pairs: list[CrossDocumentPair] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    funnel: list[FunnelStep] = field(default_factory=list)


@dataclass(frozen=True)
class Lesson:
    """All that came of one document; nothing of it depends on which documents were taught beside it."""

    document_id: str
    chunks: tuple[Chunk, ...]
    anchors: tuple[Anchor, ...]
    pairs: tuple[QAPair, ...]
    rewrite_inputs: tuple[RewriteInput, ...]
    retellings: tuple[Retelling, ...]
    rejects: tuple[Reject, ...]


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

    def retell(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors: Sequence[Anchor],
        seed: int,
        count_tokens: Callable[[str], int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Retold:
        """Return the retellings of `documents` that the settings ask for."""
        ...

    def ask_across(
        self,
        crossings: Sequence[Crossing],
        seed: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Crossed:
        """Return at most one question a crossing."""
        ...


def lessons_of(
    documents: Sequence[Document], chunks: Sequence[Chunk], taught: TeacherOutput, retold: Retold
) -> Iterator[Lesson]:
    """Yield what was made of `documents`, one by one in their order."""
    document_of = {chunk.id: chunk.document_id for chunk in chunks}
    own_chunks = _grouped(chunks, lambda one: one.document_id)
    anchors = _grouped(taught.anchors, lambda one: document_of[one.chunk_id])
    pairs = _grouped(taught.pairs, lambda one: one.document_id)
    inputs = _grouped(taught.rewrite_inputs, lambda one: one.document_id)
    retellings = _grouped(retold.retellings, lambda one: one.document_id)
    # An item of the six steps is a chunk, or an anchor named by its chunk and its place.
    rejects = _grouped(taught.rejects, lambda one: document_of[one.item_id.partition(":")[0]])
    for name in (document.id for document in documents):
        yield Lesson(
            name, own_chunks[name], anchors[name], pairs[name], inputs[name], retellings[name],
            (*rejects[name], *retold.rejects.get(name, ())),
        )  # fmt: skip


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, tuple[Item, ...]]:
    groups: dict[str, tuple[Item, ...]] = defaultdict(tuple)
    for name, group in groupby(sorted(items, key=key), key):
        groups[name] = tuple(group)
    return groups


def funnel_step(step: str, unit: str, kept: int, rejects: Iterable[Reject], in_: int | None = None) -> FunnelStep:
    """Return the step's account: what was kept, and what `rejects` of this very step dropped by reason and outcome.

    `in_`: what came in, where it was counted apart, so that `check_funnel` finds what vanished; None = kept + dropped.
    """
    ours = [reject for reject in rejects if reject.step == step]
    dropped, outcomes = (Counter(getattr(reject, name) for reject in ours) for name in ("reason", "outcome"))
    came = kept + dropped.total() if in_ is None else in_
    return FunnelStep(step, unit, came, kept, dict(sorted(dropped.items())), dict(sorted(outcomes.items())))
