"""Documents that are the same but for little: MinHash proposes pairs, the exact Jaccard similarity decides.

Broder 1997 (signatures), Leskovec et al. 2014, section 3.4 (bands). Of two near-duplicates the earlier one stays, so
the survivors are the same however the pairs were found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PERMUTATIONS = 128
SEED = 1
NGRAM = 5
# Odd numbers with their bits at random, one a character of the 5-gram.
MULTIPLIERS = np.random.default_rng(SEED).integers(1 << 62, 1 << 63, NGRAM, np.uint64) | np.uint64(1)
FINAL = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
# Of pairs that are as similar as the threshold, at most this share is missed.
MOST_MISSED = 1e-3
# Standard deviations by which an estimate may lie below the threshold before the exact similarity is not computed.
SLACK_DEVIATIONS = 4.5
# Documents off one template are all alike below the threshold, and without a bound each would be compared to all: of a
# band's group the latest survivors are looked at, and of them those most alike by their signatures compared.
MOST_IN_GROUP = 512
MOST_COMPARED = 8
# Signatures that are looked at together, so that a set on disk is never in memory as a whole.
BLOCK = 1 << 14
KEY_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Signatures(Protocol):
    """Signatures, documents x PERMUTATIONS: an array, or what reads parts of one from the disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> NDArray[np.uint32]:
        """Return what numpy's indexing of the array would."""


@dataclass(frozen=True)
class Twin:
    """Which earlier document stays in place of a dropped one, and how similar the two are."""

    survivor: int
    similarity: float


def signatures(folded_texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return the MinHash signatures of normalised texts over their character 5-grams, texts x PERMUTATIONS."""
    from rensa import RMinHash

    hashes = [ngram_hashes(text) for text in folded_texts]
    ends = np.cumsum([0, *map(len, hashes)], dtype=np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(np.concatenate(hashes), ends, PERMUTATIONS, SEED)
    return np.array(matrix.to_rows(), dtype=np.uint32).reshape(len(folded_texts), PERMUTATIONS)


def ngram_hashes(text: str) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each character 5-gram; a shorter text is padded to one."""
    points = np.frombuffer(text.ljust(NGRAM).encode("utf-32-le"), np.uint32).astype(np.uint64)
    count = len(points) - NGRAM + 1
    mixed = np.zeros(count, np.uint64)
    for place, factor in enumerate(MULTIPLIERS):
        mixed += points[place : place + count] * factor
    # The last steps of MurmurHash3: every bit of the sum reaches every bit of the hash.
    for factor in FINAL:
        mixed = (mixed ^ (mixed >> np.uint64(33))) * factor
    return mixed ^ (mixed >> np.uint64(33))


def band_rows(threshold: float) -> int:
    """Return the most rows a band may have so that MOST_MISSED of the pairs at the threshold are missed."""
    rows = [r for r in range(1, PERMUTATIONS + 1) if (1 - threshold**r) ** (PERMUTATIONS // r) <= MOST_MISSED]
    return max(rows, default=1)


def find_twins(
    found: Signatures, digests: NDArray[np.void], threshold: float, similarity: Callable[[int, int], float]
) -> tuple[dict[int, Twin], NDArray[np.float32]]:
    """Return the twin of every document to drop, and each document's largest similarity to an earlier survivor.

    found: signatures in the documents' order. digests: of the normalised texts, equal for exact duplicates.
    similarity: the exact Jaccard similarity of two documents by number; called for few pairs.
    """
    count = len(found)
    nearest = np.zeros(count, np.float32)
    survivor: dict[int, Twin] = {}
    _, first_with, which = np.unique(digests, return_index=True, return_inverse=True)
    first = first_with[which]
    survivors = _Survivors(found, first == np.arange(count), band_rows(threshold))
    least = threshold - SLACK_DEVIATIONS * float(np.sqrt(threshold * (1 - threshold) / PERMUTATIONS))
    for number in range(count):
        if first[number] != number:
            # A copy of a document that was dropped is as like its survivor as that one was.
            earlier = int(first[number])
            survivor[number] = survivor.get(earlier, Twin(earlier, 1.0))
            nearest[number] = nearest[earlier] if earlier in survivor else 1.0
            continue
        for other in _most_alike(found, number, survivors.beside(number), least):
            exact = similarity(other, number)
            nearest[number] = max(nearest[number], exact)
            if exact >= threshold:
                survivor[number] = Twin(other, exact)
                break
        else:
            survivors.keep(number)
    return survivor, nearest


def _most_alike(found: Signatures, number: int, others: NDArray[np.int32], least: float) -> list[int]:
    """Return those of `others` that are worth comparing with a document, the most alike first."""
    if not len(others):
        return []
    estimates = (found[others] == found[number]).mean(axis=1)
    order = np.argsort(-estimates, kind="stable")[:MOST_COMPARED]
    return [int(other) for other in others[order[estimates[order] >= least]]]


class _Survivors:
    """The documents kept so far, by the bands of their signatures: a few bytes a document and band that it shares.

    The documents alike in a band are a group. Each has its part of `_slots`, filled from the front as they are kept.
    """

    def __init__(self, found: Signatures, distinct: NDArray[np.bool_], rows: int) -> None:
        """distinct: which documents can be kept. rows: permutations a band."""
        documents = np.flatnonzero(distinct).astype(np.int32)
        members, groups, sizes = [documents[:0]], [documents[:0]], [documents[:0]]
        count = 0
        for band in range(PERMUTATIONS // rows):
            keys = _band_keys(found, band * rows, rows)[distinct]
            _, group, size = np.unique(keys, return_inverse=True, return_counts=True)
            shared = size > 1
            inside = shared[group]
            members.append(documents[inside])
            groups.append((count + np.cumsum(shared) - 1)[group[inside]].astype(np.int32))
            sizes.append(size[shared].astype(np.int32))
            count += len(sizes[-1])
        member = np.concatenate(members)
        order = np.argsort(member, kind="stable")
        # A document's groups are _groups[_ends[number] : _ends[number + 1]].
        self._groups = np.concatenate(groups)[order]
        self._ends = np.searchsorted(member[order], np.arange(len(found) + 1))
        self._starts = np.cumsum(np.concatenate([[0], *sizes]))[:-1]
        self._held = np.zeros(count, np.int32)
        self._slots = np.empty(len(member), np.int32)

    def beside(self, number: int) -> NDArray[np.int32]:
        """Return the survivors that share a band with a document, of each band the latest, in order."""
        groups = self._groups[self._ends[number] : self._ends[number + 1]]
        groups = groups[self._held[groups] > 0]
        if not len(groups):
            return self._slots[:0]
        ends = self._starts[groups] + self._held[groups]
        starts = np.maximum(self._starts[groups], ends - MOST_IN_GROUP)
        parts = [self._slots[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.unique(np.concatenate(parts))

    def keep(self, number: int) -> None:
        """Add a document."""
        groups = self._groups[self._ends[number] : self._ends[number + 1]]
        self._slots[self._starts[groups] + self._held[groups]] = number
        self._held[groups] += 1


def _band_keys(found: Signatures, first: int, rows: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of `rows` columns of the signatures; should two be equal by chance, the pair is compared."""
    keys = np.zeros(len(found), np.uint64)
    for start in range(0, len(found), BLOCK):
        part = found[start : start + BLOCK, first : first + rows].astype(np.uint64)
        mixed = keys[start : start + BLOCK]
        for column in part.T:
            mixed[:] = (mixed ^ column ^ (mixed >> np.uint64(29))) * KEY_FACTOR
    return keys
