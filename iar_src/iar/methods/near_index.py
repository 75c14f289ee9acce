"""Finds near-duplicates among short texts without comparing all pairs (prefix filtering, Bayardo et al. 2007).

Two sets with a Jaccard similarity of at least t share one of the first n - ceil(t n) + 1 elements of each, where all
sets are sorted by one order. The rarest n-grams first keep the lists short. The n-grams stand for themselves by 64-bit
hashes in sorted arrays, a few hundred bytes a text. Of what they propose, 16 bits of every n-gram tell at most how many
two texts share; only where these are enough the texts are read again and compared exactly.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from iar.methods.near_duplicates import ngram_hashes
from iar.methods.textnorm import character_ngrams, jaccard, normalise

NEAR_DUPLICATE = 0.8
# Rarity is counted in so many cells: any one order of the n-grams is right, and this one nearly the best.
CELLS = 1 << 20
MARKS = 1 << 16
# So many texts are indexed at once; more are gone through in as many rounds.
BLOCK = 50_000
# So many of them are looked at together: fewer arrays, and little memory.
AT_ONCE = 4096
NGRAM_SETS = 512


class NearIndex:
    """The near-duplicates of a text among the indexed ones, which `text_of` gives again by number."""

    def __init__(self, texts: Iterable[str], text_of: Callable[[int], str]) -> None:
        sets = [_grams(text) for text in texts]
        self._sizes = np.array([len(grams) for grams in sets], np.int64)
        counts = np.zeros(CELLS, np.int64)
        for start in range(0, len(sets), 1000):
            counts += np.bincount(_cell(np.concatenate(sets[start : start + 1000])), minlength=CELLS)
        self._counts = counts
        prefixes = [self._prefix(grams) for grams in sets]
        hashes = np.concatenate([np.zeros(0, np.uint64), *prefixes])
        lengths = np.array([len(prefix) for prefix in prefixes], np.int64)
        numbers = np.repeat(np.arange(len(sets), dtype=np.int32), lengths)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._marks = np.concatenate([np.zeros(0, np.uint16), *map(_marks, sets)])
        self._ngrams = lru_cache(maxsize=NGRAM_SETS)(lambda number: character_ngrams(text_of(number)))

    def _prefix(self, grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the rarest of a text's n-grams, one of which every near-duplicate of it has among its own."""
        rarest_first = np.lexsort((grams, self._counts[_cell(grams)]))
        return grams[rarest_first[: len(grams) - math.ceil(NEAR_DUPLICATE * len(grams)) + 1]]

    def similar(self, text: str) -> Iterator[int]:
        """Yield the numbers of the indexed texts that are near-duplicates of `text`, in their order."""
        grams = _grams(text)
        prefix = self._prefix(grams)
        first, last = (np.searchsorted(self._hashes, prefix, side) for side in ("left", "right"))
        found = [self._numbers[start:end] for start, end in zip(first, last, strict=True) if end > start]
        if not found:
            return
        numbers = np.unique(np.concatenate(found))
        sizes = self._sizes[numbers]
        likely = numbers[np.minimum(sizes, len(grams)) >= NEAR_DUPLICATE * np.maximum(sizes, len(grams))]
        own, marked = character_ngrams(text), np.zeros(MARKS, bool)
        marked[_marks(grams)] = True
        for start in range(0, len(likely), AT_ONCE):
            for number in self._sharing(marked, len(grams), likely[start : start + AT_ONCE]).tolist():
                if jaccard(own, self._ngrams(number)) >= NEAR_DUPLICATE:
                    yield number

    def _sharing(self, marked: NDArray[np.bool_], count: int, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return those of `numbers` that may share enough of the `count` n-grams whose marks are `marked`."""
        sizes = self._sizes[numbers]
        begins = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self._starts[numbers] - begins, sizes)
        # Two n-grams may have one mark, so this is rather too many: none is lost.
        shared = np.add.reduceat(marked[self._marks[places]], begins, dtype=np.int64)
        return numbers[shared / (sizes + count - shared) >= NEAR_DUPLICATE]


def first_similar(
    texts: Iterable[tuple[int, str]], among: NDArray[np.int64], text_of: Callable[[int], str]
) -> dict[int, int]:
    """Return, of each of the numbered `texts` that has near-duplicates `among` others, the first of them.

    `texts` are gone through once for every BLOCK of the others, which `text_of` gives by number.
    """
    found: dict[int, int] = {}
    for start in range(0, len(among), BLOCK):
        block = among[start : start + BLOCK].tolist()
        index = NearIndex(map(text_of, block), partial(_text_at, block, text_of))
        for place, text in texts:
            if place not in found and (twin := next(index.similar(text), None)) is not None:
                found[place] = block[twin]
    return found


def _text_at(places: Sequence[int], text_of: Callable[[int], str], number: int) -> str:
    return text_of(places[number])


def _grams(text: str) -> NDArray[np.uint64]:
    return np.unique(ngram_hashes(normalise(text)))


def _marks(grams: NDArray[np.uint64]) -> NDArray[np.uint16]:
    return (grams % np.uint64(MARKS)).astype(np.uint16)


def _cell(grams: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (grams % np.uint64(CELLS)).astype(np.int64)
