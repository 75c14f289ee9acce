"""Chunks: offsets first, everything covered, nothing cut in the wrong place."""

from itertools import pairwise

import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.chunking import chunk_document, headings
from iar.methods.plain_text import parse_plain
from iar.records import Document

PARAGRAPH = "The gate was cut from oak in 1702. It weighs 90 kilograms. Nobody has opened it since the flood."
WORDS = st.sampled_from(
    ["lamp", "Öl", "灯塔。", "it's", "3.5", "👩‍👩‍👧", "e\u0301", "end.", "What?", "\n\n", "\n", "- item", "क्षि"]
)


def document(body: str, title: str = "The Gate") -> Document:
    return Document("doc-000000000000", title, f"{title}\n\n{body}", "gate.txt", "text/plain", "0" * 64)


@given(st.lists(WORDS, min_size=1, max_size=60), st.integers(8, 90))
def test_chunks_are_slices_that_cover_the_body_in_order(words: list[str], size: int) -> None:
    doc = document(" ".join(words))
    chunks = chunk_document(doc, size)

    assert all(doc.text[chunk.start : chunk.end] == chunk.text and chunk.text.strip() for chunk in chunks)
    assert all(left.end <= right.start for left, right in pairwise(chunks))
    covered = "".join(chunk.text for chunk in chunks)
    assert "".join(covered.split()) == "".join(doc.text[len("The Gate") :].split())


@given(st.text(min_size=1, max_size=200), st.integers(5, 40))
def test_no_cut_falls_inside_a_grapheme(text: str, size: int) -> None:
    plain = parse_plain(f"Title\n\n{text}")
    doc = Document("doc-1", plain.title, plain.text, "a", "text/plain", "")
    boundaries = {match.start() for match in regex.finditer(r"\X", doc.text)} | {len(doc.text)}
    assert all({chunk.start, chunk.end} <= boundaries for chunk in chunk_document(doc, size))


def test_a_chunk_is_about_one_paragraph() -> None:
    doc = document("\n\n".join([PARAGRAPH] * 4))
    assert [chunk.text for chunk in chunk_document(doc, 120)] == [PARAGRAPH] * 4


def test_short_paragraphs_are_packed_together() -> None:
    doc = document("\n\n".join([PARAGRAPH] * 4))
    assert [chunk.text.count("oak") for chunk in chunk_document(doc, 250)] == [2, 2]


def test_a_long_paragraph_is_cut_at_sentence_ends() -> None:
    chunks = chunk_document(document(" ".join([PARAGRAPH] * 3)), 120)
    assert len(chunks) > 2
    assert all(chunk.text.endswith(".") and len(chunk.text) <= 120 for chunk in chunks)


def test_cjk_sentence_ends_are_known() -> None:
    chunks = chunk_document(document("灯塔高四十七米。" * 10), 20)
    assert all(chunk.text.endswith("。") for chunk in chunks)


def test_abbreviations_and_ordinals_end_no_sentence() -> None:
    # Each of these full stops stands before a capital and yet ends nothing.
    body = "Dr. Lind met J. Orme there in May. Er kam am 3. Oktober 1911 an."
    assert [chunk.text for chunk in chunk_document(document(body), 40)] == [
        "Dr. Lind met J. Orme there in May.",
        "Er kam am 3. Oktober 1911 an.",
    ]


def test_a_heading_stays_with_its_first_paragraph() -> None:
    doc = document(f"{PARAGRAPH}\n\nHistory\n\n{PARAGRAPH}")
    assert headings(doc) == ["History"]
    assert [chunk.text for chunk in chunk_document(doc, 110)] == [PARAGRAPH, f"History\n\n{PARAGRAPH}"]


def test_the_title_is_in_no_chunk() -> None:
    assert "The Gate" not in "".join(chunk.text for chunk in chunk_document(document(PARAGRAPH), 700))
