"""Anchors: literal, distinct, spread, and of the right kind in several scripts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.anchors import Corpus, find_anchors
from iar.methods.chunking import chunk_document
from iar.records import Chunk, Document, Reject

BODY = (
    "The Tall Mill was built by Tora Lind in Velm on 3 May 1846. It weighs 4.2 tonnes and has forty-one steps. "
    'Its bell is known as "Old Nan", and a cord called the tickler is hung on it. The mill fed 2,300 people in 1911. '
    "Since then the Grey Heron Company owns it."
)


def make(body: str, title: str = "The Tall Mill") -> tuple[Chunk, Document]:
    doc = Document("doc-000000000000", title, f"{title}\n\n{body}", "mill.txt", "text/plain", "")
    return chunk_document(doc, 2000)[0], doc


def found(body: str, title: str = "The Tall Mill", most: int = 50, corpus: Corpus | None = None) -> dict[str, str]:
    chunk, doc = make(body, title)
    return {anchor.text: anchor.kind for anchor in find_anchors(chunk, doc, most, corpus)}


def test_finds_each_kind() -> None:
    assert found(BODY) == {
        "Tora Lind": "name",
        "Velm": "name",
        "3 May 1846": "date",
        "4.2 tonnes": "quantity",
        "forty-one steps": "quantity",
        "Old Nan": "quoted",
        "tickler": "defined",
        "2,300 people": "quantity",
        "1911": "date",
        "Grey Heron Company": "name",
    }


def test_an_anchor_stands_at_its_offsets_and_limit_and_spread_hold() -> None:
    chunk, doc = make(BODY)
    rejects: list[Reject] = []
    anchors = find_anchors(chunk, doc, 5, rejects=rejects)
    assert all(doc.text[anchor.start : anchor.end] == anchor.text for anchor in anchors)
    # Five sentences, five anchors: one from each, the most telling.
    assert [anchor.text for anchor in anchors] == ["Tora Lind", "4.2 tonnes", "Old Nan", "1911", "Grey Heron Company"]
    assert {reject.reason for reject in rejects} == {"beyond max_anchors", "guessable from the title"}


def test_a_repeated_anchor_is_a_duplicate_of_the_one_that_stays() -> None:
    chunk, doc = make("The wheel came from Velm. The sails came from Velm too.")
    rejects: list[Reject] = []
    (anchor,) = find_anchors(chunk, doc, 5, rejects=rejects)
    (repeated,) = (one for one in rejects if one.reason == "repeated in the chunk")
    assert (repeated.outcome, repeated.text) == ("duplicate", "Velm")
    assert repeated.counterpart == f"{chunk.id}:{anchor.start}-{anchor.end}"


def test_an_ordinary_first_word_is_no_name() -> None:
    assert found("Petroleum ended the trade. Most of it was sold. Divers raised the bell.") == {}


def test_another_documents_title_is_a_relation_in_any_case() -> None:
    corpus = Corpus(titles=("The Tall Mill", "Velm moss"))
    assert found("The wheel is lined with velm moss.", corpus=corpus) == {"velm moss": "title"}


def test_a_name_inside_a_longer_one_is_not_found_apart() -> None:
    assert found("The crew feared the Salt Strike of 1871 most.") == {"Salt Strike of 1871": "name"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("塔由工程师于1846年设计，高47米，被称为“绿玛丽”，见《海岸名录》。", {"1846年", "47米", "绿玛丽", "海岸名录"}),
        ("Башню построила инженер Тора Линд в 1846 году за 12 000 рублей.", {"Тора Линд", "1846"}),
        ("高さは47米である。地元では「緑のマリア」と呼ばれている。", {"47米", "緑のマリア"}),
        ("يبلغ ارتفاعها 47 مترا وتسمى «ماري الخضراء».", {"47", "ماري الخضراء"}),
    ],
)
def test_works_in_other_scripts(body: str, expected: set[str]) -> None:
    assert expected <= set(found(body))


@given(st.text(max_size=300), st.integers(1, 6))
def test_any_text_gives_literal_distinct_anchors_without_overlap(body: str, most: int) -> None:
    doc = Document("doc-1", "T", f"T\n\n{body}", "t", "text/plain", "")
    for chunk in chunk_document(doc, 120):
        anchors = find_anchors(chunk, doc, most)
        assert len(anchors) <= most
        assert all(doc.text[anchor.start : anchor.end] == anchor.text for anchor in anchors)
        assert all(left.end <= right.start for left, right in pairwise(anchors))
