"""Work that grows with the text or the number of documents, and not with its square, whatever stands in them."""

from collections.abc import Callable

import pytest

from iar.methods.chunking import chunk_document
from iar.methods.offline_teacher import OfflineTeacher
from iar.methods.plain_text import parse_html, parse_markdown
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.methods.textnorm import sentence_spans
from iar.methods.title_index import TitleIndex
from iar.records import Anchor, Document
from tests.growth import MOST_GROWTH, growth

WORDS = [first + second + third for first in "blmprst" for second in ("a", "eo", "u") for third in ("nd", "rk", "st")]


def document(number: int, sentences: int) -> Document:
    """Return a document about a thing of its own, of sentences that differ."""
    title = f"The {word(number)} Mill {number}"
    body = " ".join(
        f"It {word(7 * at + number)} the {word(at)} of {word(at // 3).title()}{at} on day {at + number}."
        for at in range(sentences)
    )
    return Document(f"doc-{number}", title, f"{title}\n\n{body}", f"{number}.txt", "text/plain", "")


def word(number: int) -> str:
    return WORDS[number % len(WORDS)]


@pytest.mark.slow
def test_the_teacher_works_document_by_document() -> None:
    def prepare(count: int) -> Callable[[], object]:
        documents = [document(number, 2) for number in range(count)]
        chunks = [chunk for one in documents for chunk in chunk_document(one, 400)]
        return lambda: OfflineTeacher().build(documents, chunks, 3, 0)

    assert growth(prepare, 100) < MOST_GROWTH


def test_the_teacher_works_chunk_by_chunk_through_a_long_document() -> None:
    def prepare(sentences: int) -> Callable[[], object]:
        long = document(1, sentences)
        chunks = chunk_document(long, 400)
        return lambda: OfflineTeacher(("skeleton", "outline", "summary")).build([long], chunks, 3, 0)

    assert growth(prepare, 150) < MOST_GROWTH


@pytest.mark.parametrize("kind", ["skeleton", "outline", "summary"])
def test_notes_of_a_document_grow_with_its_paragraphs(kind: str) -> None:
    def prepare(paragraphs: int) -> Callable[[], object]:
        whole = document(1, paragraphs)
        one = Document("d", "T", "T\n\n" + whole.text.replace(". ", ".\n\n"), "t.txt", "text/plain", "")
        anchors = [anchor for chunk in chunk_document(one, 400) for anchor in _anchors(one, chunk.id)]
        return lambda: make_rewrite_input(one, anchors, kind, "offline")

    assert growth(prepare, 400) < MOST_GROWTH


def _anchors(one: Document, chunk_id: str) -> list[Anchor]:
    start = int(chunk_id.rpartition(".")[2])
    return [Anchor(chunk_id, "name", f"Lind {start}.{number}", start, start + 1) for number in range(20)]


def test_titles_are_looked_up_by_the_words_of_the_text() -> None:
    text = " ".join(f"the mill {number} of Velm" for number in range(50))

    def prepare(count: int) -> Callable[[], object]:
        index = TitleIndex(f"The Mill {number}" for number in range(count))
        return lambda: [list(index.standing_in(text)) for _ in range(4)]

    assert growth(prepare, 2000) < 4


# A copy of the rest of a text is quick: of short sentences so many are needed before its square shows.
SENTENCES = [("It turns. ", 8000), ("1. a. ", 16_000), ("1. ", 16_000), ("A. ", 16_000), ("a 3. Mai 1911. ", 8000),
             ("。", 16_000), ("\n", 200_000), (". ", 16_000)]  # fmt: skip
# Between what one pass took on a busy machine (9) and what copies took of the shortest sentences (17).
MOST_OF_SENTENCES = 13.0


@pytest.mark.parametrize(("unit", "size"), SENTENCES)
def test_sentences_are_found_in_one_pass(unit: str, size: int) -> None:
    def prepare(count: int) -> Callable[[], object]:
        text = unit * count
        return lambda: sentence_spans(text, 0, len(text))

    assert growth(prepare, size) < MOST_OF_SENTENCES


MARKDOWN = [
    "[", "![", "[a](", "[a](b", "[](", "[a][", "*a ", "**a\n", "_a ", "__a ", "***", "<!--", "<http://", "<a", "</",
    "`", "``a", "|--", "--- ", "# #", "> ", "\\*", "[a](b \"c", "[a](b (",
]  # fmt: skip


@pytest.mark.parametrize("unit", MARKDOWN)
def test_markdown_marks_without_an_end_cost_no_square(unit: str) -> None:
    def prepare(count: int) -> Callable[[], object]:
        text = f"T\n\n{unit * count}x"
        return lambda: parse_markdown(text)

    assert growth(prepare, 500) < MOST_GROWTH


@pytest.mark.parametrize(
    "unit", ["<div>", "<p>a", "<ul><li>", "<table><tr><td>", "<main>", "<nav>", "<br>", "<b>", "<a ", "<!--", "<pre>"]
)
def test_pages_of_any_depth_are_read_in_one_pass(unit: str) -> None:
    def prepare(count: int) -> Callable[[], object]:
        page = "<h1>T</h1>" + unit * count
        return lambda: parse_html(page)

    assert growth(prepare, 800) < MOST_GROWTH
