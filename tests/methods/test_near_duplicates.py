"""Near-duplicates: what is dropped is similar enough by the exact measure, and next to nothing is missed."""

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.digest import digest_text
from iar.methods.near_duplicates import MOST_MISSED, PERMUTATIONS, Twin, band_rows, find_twins, signatures
from iar.methods.textnorm import character_ngrams, jaccard, normalise

WORDS = [
    f"{first}{second}" for first in ["mill", "rye", "stone", "river", "hill"] for second in ["ing", "er", "ed", "s"]
]


def twins_of(texts: list[str], threshold: float = 0.8) -> dict[int, Twin]:
    folded = [normalise(text) for text in texts]
    grams = [character_ngrams(text) for text in texts]
    digests = np.array([bytes.fromhex(digest_text(text)[:32]) for text in folded], "V16")
    return find_twins(signatures(folded), digests, threshold, lambda one, two: jaccard(grams[one], grams[two]))[0]


def by_comparing_all(texts: list[str], threshold: float) -> dict[int, float]:
    grams = [character_ngrams(text) for text in texts]
    kept: list[int] = []
    dropped = {}
    for number, mine in enumerate(grams):
        near = [jaccard(grams[other], mine) for other in kept if jaccard(grams[other], mine) >= threshold]
        if near:
            dropped[number] = near[0]
        else:
            kept.append(number)
    return dropped


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([0.6, 0.8, 0.9]))
def test_as_good_as_comparing_all_pairs(random: "np.random.Generator", threshold: float) -> None:
    texts: list[str] = []
    for _ in range(40):
        words = random.choice(texts).split() if texts and random.random() < 0.7 else []
        words = words or [random.choice(WORDS) + str(random.randrange(99)) for _ in range(60)]
        for _ in range(random.randrange(6)):
            words[random.randrange(len(words))] = random.choice(WORDS)
        texts.append(" ".join(words))
    found, truth = twins_of(texts, threshold), by_comparing_all(texts, threshold)
    missed = {number for number in truth if number not in found}
    # A miss keeps a document, which may then be another's survivor; a wrong drop cannot be.
    assert len(missed) <= 1
    assert all(twin.similarity >= threshold and twin.survivor not in found for twin in found.values())


def test_exact_duplicates_of_a_near_duplicate_share_its_survivor() -> None:
    text = " ".join(f"{word} {number}" for number, word in enumerate(WORDS * 3))
    near = text.replace("milling 0", "milled 0")
    twins = twins_of([text, near, near.upper(), text + "."])
    assert {number: twin.survivor for number, twin in twins.items()} == {1: 0, 2: 0, 3: 0}
    # Each is as like the survivor as its normalised text is, and that is not wholly.
    assert 0.8 <= twins[1].similarity < 1
    assert twins[2].similarity == twins[1].similarity
    assert twins[3].similarity == 1


def test_texts_shorter_than_a_gram_are_told_apart() -> None:
    assert twins_of(["a", "b", "ab", "", "a!"]) == {4: Twin(0, 1.0)}


def test_bands_miss_next_to_nothing_at_the_threshold() -> None:
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        rows = band_rows(threshold)
        assert (1 - threshold**rows) ** (PERMUTATIONS // rows) <= MOST_MISSED


def test_thousands_of_copies_are_compared_once_each() -> None:
    text = " ".join(f"{word} {number}" for number, word in enumerate(WORDS * 5))
    texts = [text.replace("milling 0", f"milling {number}0") for number in range(2000)]
    folded = [normalise(text) for text in texts]
    digests = np.array([bytes.fromhex(digest_text(text)[:32]) for text in folded], "V16")
    calls: list[tuple[int, int]] = []

    def similarity(one: int, two: int) -> float:
        calls.append((one, two))
        return jaccard(character_ngrams(folded[one]), character_ngrams(folded[two]))

    twins, _ = find_twins(signatures(folded), digests, 0.8, similarity)
    assert len(twins) == 1999 and len(calls) == 1999


def test_a_document_takes_a_few_bytes_a_band_however_many_share_it() -> None:
    """Three documents in four share some band with a survivor by chance; their signatures stay where they are."""
    peaks = {}
    for count in (2_000, 16_000):
        found = np.random.default_rng(1).integers(0, 8, (count, PERMUTATIONS), np.uint32)
        digests = np.arange(2 * count, dtype=np.uint64).view("V16")
        tracemalloc.start()
        twins, _ = find_twins(found, digests, 0.8, lambda one, two: 0.0)
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not twins
    assert (peaks[16_000] - peaks[2_000]) / 14_000 < 1_200
