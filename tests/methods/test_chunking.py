"""Chunks: offsets first, everything covered, nothing cut in the wrong place."""

from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.chunking import chunk_document, headings, paragraph_spans
from iar.methods.plain_text import parse_plain
from iar.records import Document
from iar.services.models import load_tokenizer

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


def texts(body: str, size: int) -> list[str]:
    return [chunk.text for chunk in chunk_document(document(body), size)]


LIST = "- oak from Velm\n- brass from Osk\n- a rope of 40 ells"
TABLE = "part | weight\n\nbell | 90 kg\n\nrope | 12 kg"
CODE = "```py\ndef turn(gate):\n    return gate + 1\n\n\nturn(3)\n```"


@pytest.mark.parametrize(
    "block", [LIST, LIST.replace("\n", "\n\n"), TABLE, CODE], ids=["list", "items", "table", "code"]
)
def test_a_list_a_table_and_code_that_fit_are_never_cut(block: str) -> None:
    for size in range(len(block), 3 * len(PARAGRAPH)):
        assert sum(block in text for text in texts(f"{PARAGRAPH}\n\n{block}\n\n{PARAGRAPH}", size)) == 1


@pytest.mark.parametrize("block", [LIST, TABLE, CODE], ids=["list", "table", "code"])
def test_one_that_does_not_fit_is_cut_between_its_lines(block: str) -> None:
    found = texts(block, 30)
    assert len(found) > 1
    assert {line for text in found for line in text.split("\n")} <= {line.strip() for line in block.split("\n")}


def test_what_announces_a_block_stays_with_it() -> None:
    body = f"{PARAGRAPH}\n\nParts\n\nIt is made of these:\n\n{LIST}"
    assert texts(body, 120)[-1] == f"Parts\n\nIt is made of these:\n\n{LIST}"


def test_a_heading_never_ends_a_chunk_where_a_sentence_fits_after_it() -> None:
    for size in range(60, 200):
        assert not any(text.endswith("History") for text in texts(f"{PARAGRAPH}\n\nHistory\n\n{PARAGRAPH}", size))


def test_blank_lines_in_code_end_no_paragraph_and_an_open_fence_is_no_code() -> None:
    assert len(paragraph_spans(document(f"{CODE}\n\n{PARAGRAPH}"))) == 2
    assert len(paragraph_spans(document(f"{CODE[:-3]}\n\n{PARAGRAPH}"))) == 3


@given(st.lists(WORDS, min_size=1, max_size=60), st.integers(4, 40))
def test_any_unit_can_bound_a_chunk(words: list[str], size: int) -> None:
    # Bytes: a character takes several, as it may take several tokens.
    doc = document(" ".join(words))

    def size_of(text: str) -> int:
        return len(text.encode())

    chunks = chunk_document(doc, size, size_of)
    assert all(size_of(chunk.text) <= size or regex.fullmatch(r"\X", chunk.text) for chunk in chunks)
    assert "".join("".join(chunk.text for chunk in chunks).split()) == "".join(doc.text[len("The Gate") :].split())


def test_tokens_of_a_model_bound_a_chunk(tiny_model_folder: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_folder)

    def count_tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    doc = document("\n\n".join([PARAGRAPH, LIST, "灯塔高四十七米。" * 9, "x" * 400]))
    chunks = chunk_document(doc, 40, count_tokens)
    counts = [count_tokens(chunk.text) for chunk in chunks]
    assert max(counts) <= 40 and sum(counts) / len(counts) > 20
