"""Splits and deduplication."""

import random
from collections import Counter
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods import near_index
from iar.methods.splits import apart, assign_splits, find_repeats, words_digest
from iar.methods.textnorm import character_ngrams, jaccard, normalise
from iar.records import Chunk, CrossDocumentPair, QAPair, Reject


def chunks_of(document: str, count: int) -> list[Chunk]:
    return [Chunk(f"{document}.{i:03d}", document, 0, 1, "x") for i in range(count)]


def pair(name: str, split: str, question: str, anchor: str = "a", document: str = "doc") -> QAPair:
    return QAPair(name, document, f"chunk-{name}", split, "fact_extraction", question, "a", "", (), anchor, "offline")


def deduplicate(pairs: list[QAPair], chunks: list[Chunk] | None = None) -> tuple[list[QAPair], list[Reject]]:
    text_of = {chunk.id: chunk.text for chunk in chunks or []}
    words = b"".join(words_digest(text_of.get(one.chunk_id, one.chunk_id)) for one in pairs)
    found = find_repeats(pairs, words)
    return [one for one, kept in zip(pairs, found.kept, strict=True) if kept], list(found.rejects(pairs))


def test_shares_hold_over_many_documents() -> None:
    chunks = [chunk for i in range(200) for chunk in chunks_of(f"doc-{i}", 3)]
    counts = Counter(assign_splits(chunks, 0.2, 0.3, "salt").values())
    assert abs(counts["test"] - 180) < 20
    assert abs(counts["validation"] - 120) < 20


@given(st.integers(2, 12), st.text(max_size=5), st.floats(0, 0.6), st.floats(0, 0.4))
def test_other_documents_change_nothing_and_train_is_never_left_out(
    count: int, salt: str, validation: float, test: float
) -> None:
    alone = assign_splits(chunks_of("doc-a", count), validation, test, salt)
    together = assign_splits([*chunks_of("doc-b", 4), *chunks_of("doc-a", count)], validation, test, salt)
    assert alone == {chunk: split for chunk, split in together.items() if chunk.startswith("doc-a")}
    assert "train" in alone.values()


def test_the_salt_moves_the_splits() -> None:
    chunks = [chunk for i in range(20) for chunk in chunks_of(f"doc-{i}", 3)]
    assert assign_splits(chunks, 0.2, 0.3, "a") != assign_splits(chunks, 0.2, 0.3, "b")


def test_train_gives_way_to_validation_and_validation_to_test() -> None:
    question = "In which year was the tall mill on the northern hill of Velm built{}?"
    pairs = [
        pair("a", "train", question.format("")),
        pair("b", "validation", question.format(" exactly")),
        pair("c", "test", question.format("")),
    ]
    kept, rejects = deduplicate(pairs)
    assert [item.id for item in kept] == ["c"]
    # No text: it would show the words of the locked question.
    assert {(reject.item_id, reject.reason, reject.text, reject.counterpart) for reject in rejects} == {
        ("a", "duplicate question (train)", "", "c"),
        ("b", "near-duplicate in another split (validation)", "", "c"),
    }


def test_near_duplicates_of_one_split_both_stay_but_equals_do_not() -> None:
    # Two gaps in one sentence look alike and ask for different things.
    pairs = [
        pair("a", "train", "Which words complete: the old mill was built by ____ in the year 1846?"),
        pair("b", "train", "Which words complete: the old mill was built by Lind in the year ____?", "1846"),
        pair("c", "train", "which words complete: The old mill was built by ____ in the year 1846 ?"),
    ]
    kept, rejects = deduplicate(pairs)
    assert [item.id for item in kept] == ["a", "b"]
    assert [reject.reason for reject in rejects] == ["duplicate question (train)"]
    assert [reject.text for reject in rejects] == [next(one.question for one in pairs if one.id == rejects[0].item_id)]


def test_near_duplicates_about_one_anchor_of_one_document_count_once() -> None:
    asked = "In {} year was the tall mill on the northern hill of Velm built by Tora Lind?"
    words = ("which", "what", "just what", "exactly what")
    pairs = [
        pair("a", "train", asked.format(words[0])),
        pair("b", "train", asked.format(words[1])),
        pair("c", "train", asked.format(words[2]), anchor="Tora Lind"),
        pair("d", "train", asked.format(words[3]), document="other"),
    ]
    kept, rejects = deduplicate(pairs)
    assert [one.id for one in kept] == ["a", "c", "d"]
    assert [(one.item_id, one.reason, one.counterpart, one.outcome) for one in rejects] == [
        ("b", "near-duplicate about the same anchor (train)", "a", "duplicate")
    ]


ROWS = st.lists(
    st.tuples(st.sampled_from(["train", "validation", "test"]), st.text("ab ", min_size=1, max_size=14)), max_size=14
)


@settings(max_examples=50)
@given(ROWS)
def test_no_near_duplicate_straddles_the_splits(rows: list[tuple[str, str]]) -> None:
    kept, rejects = deduplicate([pair(str(i), split, text) for i, (split, text) in enumerate(rows)])
    assert len(kept) + len(rejects) == len(rows)
    for left in kept:
        for right in kept:
            if left.split != right.split:
                assert jaccard(character_ngrams(left.question), character_ngrams(right.question)) < 0.8


def compared_with_all(pairs: list[QAPair]) -> list[tuple[str, str]]:
    """The rule as it reads: each question against every one that stays, test first; (dropped, for which) by place."""
    kept: list[QAPair] = []
    dropped = {}
    for split in ("test", "validation", "train"):
        for one in (one for one in pairs if one.split == split):
            grams = character_ngrams(one.question)
            equal = [other for other in kept if character_ngrams(other.question) == grams and grams]
            equal = [other for other in equal if normalise(other.question) == normalise(one.question)]
            near = [other for other in kept if other.split != split]
            near = [other for other in near if jaccard(character_ngrams(other.question), grams) >= 0.8]
            if other := next(iter([*equal, *sorted(near, key=pairs.index)]), None):
                dropped[one.id] = other.id
            else:
                kept.append(one)
    return [(one.id, dropped[one.id]) for one in pairs if one.id in dropped]


@settings(max_examples=50)
@given(ROWS, st.sampled_from([1, 2, 100]))
def test_however_few_questions_are_indexed_at_once_the_rule_is_the_same(rows: list[tuple[str, str]], most: int) -> None:
    pairs = [pair(str(number), split, text) for number, (split, text) in enumerate(rows)]
    with patch.object(near_index, "BLOCK", most):
        _, rejects = deduplicate(pairs)
    assert [(one.item_id, one.counterpart) for one in rejects] == compared_with_all(pairs)


def test_texts_that_only_share_words_are_not_read_again() -> None:
    """Some rare n-gram of each stands in another; what is read again is compared set by set, which takes its time."""
    draw = random.Random(3)
    words = [begin + end for begin in ("pel", "tor", "vel", "mar", "qui") for end in ("amoor", "onder", "urix", "essa")]
    texts = [" ".join(draw.choices(words, k=16)) for _ in range(400)]
    read: list[int] = []

    def text_of(number: int) -> str:
        read.append(number)
        return texts[number]

    with patch.object(near_index, "NGRAM_SETS", 1):
        index = near_index.NearIndex(texts, text_of)
    found = [number for text in texts for number in index.similar(text)]
    grams = [character_ngrams(text) for text in texts]
    assert found == [place for own in grams for place, other in enumerate(grams) if jaccard(own, other) >= 0.8]
    assert 400 <= len(found) < 420 and len(read) < 450


def copied(name: str, document: str, text: str) -> Chunk:
    return Chunk(f"chunk-{name}", document, 0, len(text), text)


def test_no_question_is_asked_about_words_that_are_held_out_in_another_document() -> None:
    chunks = [copied("a", "d1", "The mill is old."), copied("b", "d2", "the mill  is OLD"), copied("c", "d3", "New.")]
    pairs = [
        pair("a", "train", "Which building of Velm is called old?"),
        pair("b", "validation", "What is said of the age of the mill?"),
        pair("c", "train", "What is new in the third of the documents?"),
    ]
    kept, rejects = deduplicate(pairs, chunks)
    assert [item.id for item in kept] == ["b", "c"]
    assert [(one.item_id, one.reason, one.counterpart) for one in rejects] == [
        ("a", "its chunk stands in another split too (train)", "chunk-b")
    ]


def test_copies_in_one_split_both_stay() -> None:
    chunks = [copied("a", "d1", "The mill is old."), copied("b", "d2", "The mill is old.")]
    pairs = [pair("a", "train", "Which building is old?"), pair("b", "train", "What is said of the mill's age?")]
    assert deduplicate(pairs, chunks) == (pairs, [])


def test_a_question_over_two_documents_that_is_one_about_a_chunk_is_dropped() -> None:
    one = pair("a", "train", "In which year was the tall mill on the northern hill of Velm built?")
    both = [
        CrossDocumentPair(**vars(pair(name, "test", question)), other_document_id="e", other_chunk_id="e.0")
        for name, question in (("x", one.question.upper()), ("y", "Which of both mills did Tora Lind build first?"))
    ]
    kept, rejects = apart(both, [one])
    assert [item.id for item in kept] == ["y"]
    assert [(item.item_id, item.counterpart, item.step) for item in rejects] == [("x", "a", "cross_deduplicated")]
