"""Splits by chunk, and the removal of questions that two splits share; leaks are contamination.py's.

A leak these rules cannot see: the same fact stated in two documents (or in two chunks of one) in other words may be
asked of one in training and of the other in the test. No overlap shows it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from iar.methods.digest import digest_text
from iar.methods.textnorm import character_ngrams, jaccard, normalise
from iar.records import Chunk, CrossDocumentPair, QAPair, Reject

SPLITS = ("train", "validation", "test")
NEAR_DUPLICATE = 0.8
# Who keeps a shared question: the locked test first, then validation.
_PRIORITY = {"test": 0, "validation": 1, "train": 2}


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


def deduplicate(pairs: Sequence[QAPair], chunks: Sequence[Chunk] = ()) -> tuple[list[QAPair], list[Reject]]:
    """Drop questions equal after normalisation, and near-duplicates: of any question of another split, and within a
    split of one about the same anchor of the same document. Two gaps in one sentence look alike and ask for two things.

    Near is a Jaccard similarity of character 5-grams of at least 0.8. Train gives way to validation,
    validation to test. So do the questions about one of `chunks` whose very words stand in a chunk of another
    split: the splits themselves stay, or an added document would move those of another. Order is kept; each
    reject names what stayed.
    """
    rejects = []
    copied = _copied(pairs, chunks)
    split_of = {pair.chunk_id: pair.split for pair in pairs}
    first_with: dict[str, QAPair] = {}
    index = _NearIndex(pair.question for pair in pairs)
    kept: list[int] = []
    for place in sorted(range(len(pairs)), key=lambda place: _PRIORITY[pairs[place].split]):
        pair, folded = pairs[place], normalise(pairs[place].question)
        near = (pairs[other] for other in index.similar(place) if _asks_the_same(pair, pairs[other]))
        if other := copied.get(pair.chunk_id):
            reason = f"its chunk stands in another split too ({pair.split})"
            shown = "" if split_of[other] == "test" else pair.question
            rejects.append(Reject("deduplicated", pair.id, reason, shown, other, "duplicate"))
        elif folded in first_with:
            rejects.append(_reject("deduplicated", pair, "duplicate question", first_with[folded]))
        elif first := next(near, None):
            where = "in another split" if first.split != pair.split else "about the same anchor"
            rejects.append(_reject("deduplicated", pair, f"near-duplicate {where}", first))
        else:
            first_with[folded] = pair
            kept.append(place)
            index.add(place)
    return [pairs[place] for place in sorted(kept)], rejects


def _asks_the_same(pair: QAPair, other: QAPair) -> bool:
    """Tell whether one of two near-duplicates has to go."""
    same_document = pair.document_id == other.document_id
    return pair.split != other.split or (same_document and normalise(pair.anchor) == normalise(other.anchor))


def _copied(pairs: Sequence[QAPair], chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return the chunks whose words stand in a chunk that is held out before theirs, each with that chunk."""
    split_of = {pair.chunk_id: pair.split for pair in pairs}
    asked = sorted((chunk for chunk in chunks if chunk.id in split_of), key=lambda one: _PRIORITY[split_of[one.id]])
    first_with: dict[str, str] = {}
    held = ((chunk.id, first_with.setdefault(digest_text(normalise(chunk.text)), chunk.id)) for chunk in asked)
    return {own: first for own, first in held if split_of[own] != split_of[first]}


def apart(cross: Sequence[CrossDocumentPair], pairs: Sequence[QAPair]) -> tuple[list[CrossDocumentPair], list[Reject]]:
    """Drop the questions over two documents that are near-duplicates of one about a single chunk."""
    index = _NearIndex([*(pair.question for pair in pairs), *(pair.question for pair in cross)])
    for place in range(len(pairs)):
        index.add(place)
    twins = [next(index.similar(len(pairs) + number), None) for number in range(len(cross))]
    rejects = [
        _reject("cross_deduplicated", pair, "near-duplicate of a question about one chunk", pairs[twin])
        for pair, twin in zip(cross, twins, strict=True)
        if twin is not None
    ]
    return [pair for pair, twin in zip(cross, twins, strict=True) if twin is None], rejects


class _NearIndex:
    """Finds near-duplicates among added texts without comparing all pairs (prefix filtering, Bayardo et al. 2007).

    Two sets with a Jaccard similarity of at least t share one of the first n - ceil(t n) + 1 elements of
    each, where all sets are sorted by one order; the rarest n-grams first keep the lists short.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._sets = [character_ngrams(text) for text in texts]
        frequency = Counter(ngram for ngrams in self._sets for ngram in ngrams)
        self._prefixes = [
            sorted(ngrams, key=lambda ngram: (frequency[ngram], ngram))[
                : len(ngrams) - math.ceil(NEAR_DUPLICATE * len(ngrams)) + 1
            ]
            for ngrams in self._sets
        ]
        self._places: dict[str, list[int]] = defaultdict(list)

    def add(self, place: int) -> None:
        """Add text number `place` to those that are found."""
        for ngram in self._prefixes[place]:
            self._places[ngram].append(place)

    def similar(self, place: int) -> Iterator[int]:
        """Yield the added texts that are near-duplicates of text number `place`, in their order."""
        candidates = sorted({other for ngram in self._prefixes[place] for other in self._places[ngram]})
        return (other for other in candidates if jaccard(self._sets[place], self._sets[other]) >= NEAR_DUPLICATE)


def _reject(step: str, pair: QAPair, reason: str, counterpart: QAPair) -> Reject:
    # The words of a question like one of the test are those of the test, which stays locked.
    shown = "" if counterpart.split == "test" else pair.question
    return Reject(step, pair.id, f"{reason} ({pair.split})", shown, counterpart.id, "duplicate")
