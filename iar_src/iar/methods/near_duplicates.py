"""Documents that are the same but for little: MinHash proposes pairs, the exact Jaccard similarity decides.

Broder 1997 (signatures), Leskovec et al. 2014, section 3.4 (bands). Of two near-duplicates the earlier one stays, so
the survivors are the same however the pairs were found.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    found: NDArray[np.uint32], digests: NDArray[np.void], threshold: float, similarity: Callable[[int, int], float]
) -> tuple[dict[int, Twin], NDArray[np.float32]]:
    """Return the twin of every document to drop, and each document's largest similarity to an earlier survivor.

    found: signatures, documents x PERMUTATIONS, in the documents' order. digests: of the normalised texts, equal for
    exact duplicates. similarity: the exact Jaccard similarity of two documents by number; called for few pairs.
    """
    count = len(found)
    nearest = np.zeros(count, np.float32)
    survivor: dict[int, Twin] = {}
    _, first_with, which = np.unique(digests, return_index=True, return_inverse=True)
    first = first_with[which]
    groups = _shared_bands(found, np.flatnonzero(first == np.arange(count)), band_rows(threshold))
    least = threshold - SLACK_DEVIATIONS * float(np.sqrt(threshold * (1 - threshold) / PERMUTATIONS))
    kept: dict[tuple[int, int], deque[int]] = defaultdict(lambda: deque(maxlen=MOST_IN_GROUP))
    for number in range(count):
        if first[number] != number:
            # A copy of a document that was dropped is as like its survivor as that one was.
            earlier = int(first[number])
            survivor[number] = survivor.get(earlier, Twin(earlier, 1.0))
            nearest[number] = nearest[earlier] if earlier in survivor else 1.0
            continue
        bands = groups.get(number, ())
        for other in _most_alike(found, number, set().union(*(kept[band] for band in bands)), least):
            exact = similarity(other, number)
            nearest[number] = max(nearest[number], exact)
            if exact >= threshold:
                survivor[number] = Twin(other, exact)
                break
        else:
            for band in bands:
                kept[band].append(number)
    return survivor, nearest


def _most_alike(found: NDArray[np.uint32], number: int, others: set[int], least: float) -> list[int]:
    """Return those of `others` that are worth comparing with a document, the most alike first."""
    if not others:
        return []
    candidates = np.array(sorted(others), dtype=np.int64)
    estimates = (found[candidates] == found[number]).mean(axis=1)
    order = np.argsort(-estimates, kind="stable")[:MOST_COMPARED]
    return [int(other) for other in candidates[order[estimates[order] >= least]]]


def _shared_bands(
    found: NDArray[np.uint32], documents: NDArray[np.int64], rows: int
) -> dict[int, list[tuple[int, int]]]:
    """Return, of each document that shares a band with another, the (band, group) that it shares."""
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for band in range(PERMUTATIONS // rows):
        keys = np.ascontiguousarray(found[documents, band * rows : (band + 1) * rows]).view(f"V{4 * rows}").ravel()
        _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        shared = np.flatnonzero(sizes[group] > 1)
        for document, number in zip(documents[shared].tolist(), group[shared].tolist(), strict=True):
            groups[document].append((band, number))
    return groups
