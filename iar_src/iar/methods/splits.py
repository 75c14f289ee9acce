"""Splits by chunk, and the removal of questions that two splits share; leaks are contamination.py's.

A leak these rules cannot see: the same fact stated in two documents (or in two chunks of one) in other words may be
asked of one in training and of the other in the test. No overlap shows it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from iar.methods.digest import digest_text
from iar.methods.near_index import NEAR_DUPLICATE, NearIndex, first_similar
from iar.methods.textnorm import character_ngrams, jaccard, normalise
from iar.records import Chunk, CrossDocumentPair, QAPair, Reject

SPLITS = ("train", "validation", "test")
# Who keeps a shared question, by number in SPLITS: the locked test first, then validation.
_PRIORITY = (2, 1, 0)
RULES = (
    "",
    "its chunk stands in another split too",
    "duplicate question",
    "near-duplicate in another split",
    "near-duplicate about the same anchor",
)
COPIED, EQUAL, NEAR, SAME_ANCHOR = 1, 2, 3, 4
DIGEST_BYTES = 16


def _unit_hash(text: str) -> float:
    """Return a number in [0, 1) that depends on `text` only."""
    return int(digest_text(text)[:13], 16) / 16**13


def assign_splits(chunks: Sequence[Chunk], validation_share: float, test_share: float, salt: str) -> dict[str, str]:
    """Return the split of each chunk id.

    Systematic sampling within a document: its chunks, ranked by salted hash, stand at equal steps on
    [0, 1) from a hashed offset; [0, test) is test, then validation, then train. So each document gets
    the shares rounded up or down, all documents together get them on average, and no other document
    changes the outcome.
    A document of two chunks or more keeps at least one in train.
    """
    by_document: dict[str, list[str]] = defaultdict(list)
    for chunk in chunks:
        by_document[chunk.document_id].append(chunk.id)
    split_of: dict[str, str] = {}
    for document_id, chunk_ids in by_document.items():
        ranked = sorted(chunk_ids, key=lambda chunk_id: digest_text(f"{salt}/{chunk_id}"))
        offset = _unit_hash(f"{salt}/{document_id}")
        splits = [_split_at((rank + offset) / len(ranked), validation_share, test_share) for rank in range(len(ranked))]
        if len(splits) > 1 and "train" not in splits:
            splits[-1] = "train"
        split_of.update(zip(ranked, splits, strict=True))
    return split_of


def _split_at(position: float, validation_share: float, test_share: float) -> str:
    if position < test_share:
        return "test"
    return "validation" if position < test_share + validation_share else "train"


def with_splits(pairs: Iterable[QAPair], split_of: dict[str, str]) -> list[QAPair]:
    """Return the pairs with the split of their chunk."""
    return [replace(pair, split=split_of[pair.chunk_id]) for pair in pairs]


class Pairs(Protocol):
    """Many pairs, on disk or in memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[QAPair]: ...

    def __getitem__(self, place: int, /) -> QAPair: ...


def words_digest(text: str) -> bytes:
    """Return DIGEST_BYTES that are equal for texts that differ in form only."""
    return bytes.fromhex(digest_text(normalise(text))[: 2 * DIGEST_BYTES])


@dataclass(frozen=True)
class Repeats:
    """Which questions go, and for which: by place, the number of the rule in RULES (0: it stays) and the other's place.

    Five bytes a question.
    """

    rules: NDArray[np.int8]
    others: NDArray[np.int32]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """By place, whether the question stays."""
        kept: NDArray[np.bool_] = self.rules == 0
        return kept

    def rejects(self, pairs: Pairs) -> Iterator[Reject]:
        """Yield the rejects, each with what stayed, in the order of the pairs."""
        for pair, rule, other in zip(pairs, self.rules, self.others, strict=True):
            if rule:
                stayed = pairs[int(other)]
                counterpart = stayed.chunk_id if rule == COPIED else stayed.id
                yield _reject("deduplicated", pair, RULES[rule], stayed, counterpart)


def find_repeats(pairs: Pairs, chunk_words: bytes) -> Repeats:
    """Find questions equal after normalisation, and near-duplicates: of any question of another split, and within a
    split of one about the same anchor of the same document. Two gaps in one sentence look alike and ask for two things.

    Near is a Jaccard similarity of character 5-grams of at least 0.8. Train gives way to validation, validation to
    test. So do the questions about a chunk whose very words stand in a chunk of another split: the splits themselves
    stay, or an added document would move those of another.

    pairs: in the order of their documents. chunk_words: `words_digest` of each pair's chunk, one after the other.
    """
    splits = np.fromiter((SPLITS.index(pair.split) for pair in pairs), np.int8, len(pairs))
    words = np.fromiter((words_digest(pair.question) for pair in pairs), f"V{DIGEST_BYTES}", len(pairs))
    first = _first_of_group(_groups(np.frombuffer(chunk_words, f"V{DIGEST_BYTES}")), splits)
    copied = splits[first] != splits
    equal = _groups(words)
    rules, others = np.zeros(len(pairs), np.int8), np.full(len(pairs), -1, np.int32)
    rules[copied], others[copied] = COPIED, first[copied]
    stays = np.full(len(pairs), -1, np.int32)  # by group of equal questions: the one that stays
    held = np.zeros(len(pairs), bool)  # what stays of the splits so far
    for split in _PRIORITY:
        own = (splits == split) & ~copied
        new = own & (stays[equal] < 0)
        asked = _Questions(pairs, new)
        near = first_similar(asked, np.flatnonzero(held), lambda place: pairs[place].question)
        anchored = _SameAnchor()
        for place, pair in ((place, pair) for place, pair in enumerate(pairs) if own[place]):
            found = {NEAR: near.get(place), SAME_ANCHOR: anchored.near(pair)}
            twins = {other: rule for rule, other in found.items() if other is not None}
            if (same := stays[equal[place]]) >= 0:
                rules[place], others[place] = EQUAL, same
            elif twins:
                others[place] = min(twins)
                rules[place] = twins[min(twins)]
            else:
                stays[equal[place]] = place
                anchored.add(place, pair)
        held |= own & (rules == 0)
    return Repeats(rules, others)


class _SameAnchor:
    """The questions of one split that stay, of the document at hand by their anchors."""

    def __init__(self) -> None:
        self._document = ""
        self._asked: dict[str, list[tuple[int, str]]] = {}

    def near(self, pair: QAPair) -> int | None:
        """Return the place of the first near-duplicate of a pair about the same anchor."""
        if pair.document_id != self._document:
            self._document, self._asked = pair.document_id, {}
        grams = character_ngrams(pair.question)
        asked = self._asked.get(normalise(pair.anchor), ())
        alike = (place for place, other in asked if jaccard(grams, character_ngrams(other)) >= NEAR_DUPLICATE)
        return next(alike, None)

    def add(self, place: int, pair: QAPair) -> None:
        """Take up a pair of the document that `near` was last asked about."""
        self._asked.setdefault(normalise(pair.anchor), []).append((place, pair.question))


@dataclass(frozen=True)
class _Questions:
    """The questions at some places, with these; may be gone through again."""

    pairs: Pairs
    wanted: NDArray[np.bool_]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((place, pair.question) for place, pair in enumerate(self.pairs) if self.wanted[place])


def _groups(digests: NDArray[np.void]) -> NDArray[np.int32]:
    """Return a number for each digest, the same for equal ones, below their count."""
    return np.unique(digests, return_inverse=True)[1].astype(np.int32)


def _first_of_group(groups: NDArray[np.int32], splits: NDArray[np.int8]) -> NDArray[np.int32]:
    """Return for each place the first of its group in the split that goes first of those that the group is in."""
    rank = np.array([_PRIORITY.index(split) for split in range(len(SPLITS))])[splits]
    order = np.lexsort((rank, groups))
    firsts = np.zeros(len(groups), np.int32)
    opens = np.ones(len(groups), bool)
    opens[1:] = groups[order][1:] != groups[order][:-1]
    firsts[groups[order][opens]] = order[opens]
    return firsts[groups]


def apart(cross: Sequence[CrossDocumentPair], pairs: Iterable[QAPair]) -> tuple[list[CrossDocumentPair], list[Reject]]:
    """Drop the questions over two documents that are near-duplicates of one about a single chunk."""
    index = NearIndex((pair.question for pair in cross), lambda number: cross[number].question)
    twins: dict[int, QAPair] = {}
    for pair in pairs:
        for number in index.similar(pair.question):
            twins.setdefault(number, pair)
    reason = "near-duplicate of a question about one chunk"
    rejects = [
        _reject("cross_deduplicated", cross[number], reason, twin, twin.id) for number, twin in sorted(twins.items())
    ]
    return [pair for number, pair in enumerate(cross) if number not in twins], rejects


def _reject(step: str, pair: QAPair, reason: str, stayed: QAPair, counterpart: str) -> Reject:
    # The words of a question like one of the test are those of the test, which stays locked.
    shown = "" if stayed.split == "test" else pair.question
    return Reject(step, pair.id, f"{reason} ({pair.split})", shown, counterpart, "duplicate")
