"""Documents into chunks: contiguous slices within a budget, cut where the document's structure is.

Offsets first: every step works on spans of the document's text. Paragraphs, lists, tables and fenced code are blocks; a
heading, or a line that ends with a colon, belongs to the block after it. A block that fits is never cut.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iar.methods.textnorm import after_bullet, code_spans, grapheme_boundary, is_heading, sentence_spans, trim
from iar.records import Chunk, Document

Span = tuple[int, int]
Measure = Callable[[str], int]
"""The size of a text in the budget's unit: `len` for characters, or the number of a model's tokens."""

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\Z")


@dataclass(frozen=True)
class _Block:
    """A span that stays whole where it fits: kind "prose", "list", "table" or "code". `lead`: where what leads to it
    starts, the headings before it and the line that announces it.
    """

    kind: str
    lead: int
    start: int
    end: int


def body_start(document: Document) -> int:
    """Return the offset after the title line, or 0 where the text doesn't start with the title."""
    end = document.text.find("\n")
    first_line = document.text[: end if end >= 0 else len(document.text)]
    return len(first_line) if document.title and first_line.strip() == document.title.strip() else 0


def paragraph_spans(document: Document) -> list[Span]:
    """Return the trimmed spans of the body's paragraphs; a blank line ends one, unless it is in fenced code."""
    text, begin = document.text, body_start(document)
    code = code_spans(text)
    beyond = (len(text), len(text))
    code_start, code_end = next(code, beyond)
    spans = []
    for match in _PARAGRAPH_END.finditer(text, begin):
        while code_end <= match.start() < len(text):
            code_start, code_end = next(code, beyond)
        if code_start < match.start() < code_end:
            continue
        spans.append(trim(text, begin, match.start()))
        begin = match.end()
    return [span for span in spans if span[0] < span[1]]


def headings(document: Document) -> list[str]:
    """Return the section headings: heading-like paragraphs that another paragraph follows."""
    paragraphs = [document.text[start:end] for start, end in paragraph_spans(document)]
    return [paragraph for paragraph in paragraphs[:-1] if is_heading(paragraph)]


def chunk_document(document: Document, budget: int, measure: Measure = len) -> list[Chunk]:
    """Cut the body into chunks whose `measure` is at most `budget` (a single longer grapheme apart).

    Each chunk is text[start:end] of the document, none is empty, none overlaps, and together they hold every non-space
    character but those of the title line. What is too long for a chunk is cut between lines (lists, tables, code) or
    sentences (prose), then between words, then between graphemes.
    """
    cutter = _Cutter(document.text, budget, measure)
    pieces = [piece for block in _blocks(document) for piece in cutter.pieces(block)]
    spans = cutter.pack(pieces)
    return [
        Chunk(f"{document.id}.{index:03d}", document.id, start, end, document.text[start:end])
        for index, (start, end) in enumerate(spans)
    ]


def _blocks(document: Document) -> list[_Block]:
    """Return the blocks of the body in order; neighbouring list items are one list, neighbouring rows one table."""
    text, blocks = document.text, list[_Block]()
    lead: int | None = None
    paragraphs = paragraph_spans(document)
    for number, (start, end) in enumerate(paragraphs, 1):
        kind = _kind(text[start:end])
        if kind == "lead" and number < len(paragraphs):
            lead = start if lead is None else lead
            continue
        before = blocks[-1] if blocks else None
        if before and lead is None and kind == before.kind and kind in ("list", "table"):
            blocks[-1] = _Block(kind, before.lead, before.start, end)
        else:
            blocks.append(_Block(kind, start if lead is None else lead, start, end))
        lead = None
    return blocks


def _kind(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if next(code_spans(paragraph), None):
        return "code"
    if all(" | " in line for line in lines):
        return "table"
    if after_bullet(lines[-1], 0, len(lines[-1])):
        return "list"
    return "lead" if is_heading(paragraph) or paragraph.endswith((":", "：")) else "prose"


class _Cutter:
    """Cuts and joins spans of one text within one budget."""

    def __init__(self, text: str, budget: int, measure: Measure) -> None:
        self._text, self._budget, self._measure = text, budget, measure
        items = (self._lines, self._sentences, self._words)
        self._prose = (self._sentences, self._words)
        self._levels = {"code": (self._stanzas, self._lines, self._words), "list": items, "table": items}

    def pieces(self, block: _Block) -> list[Span]:
        """Return the block with its lead as one piece where it fits, else the block alone, else parts of it."""
        whole = (block.lead, block.end)
        if self._fits(*whole):
            return [whole]
        levels = self._levels.get(block.kind, self._prose)
        if block.kind != "prose" and block.lead < block.start and self._fits(block.start, block.end):
            return [*self._divide(trim(self._text, block.lead, block.start), self._prose), (block.start, block.end)]
        return self._divide(whole, levels)

    def pack(self, pieces: Sequence[Span]) -> list[Span]:
        """Join neighbouring pieces while they fit; a heading joins no chunk that is half full."""
        packed: list[Span] = []
        for start, end in pieces:
            if packed and self._fits(packed[-1][0], end) and not self._begins_section(start, end, packed[-1]):
                packed[-1] = (packed[-1][0], end)
            else:
                packed.append((start, end))
        return packed

    def _begins_section(self, start: int, end: int, before: Span) -> bool:
        first_line = self._text[start:end].partition("\n")[0]
        return is_heading(first_line) and self._measure(self._text[slice(*before)]) > self._budget // 2

    def _fits(self, start: int, end: int) -> bool:
        return self._measure(self._text[start:end]) <= self._budget

    def _divide(self, span: Span, levels: Sequence[Callable[[Span], list[Span]]]) -> list[Span]:
        """Cut a span at the first level; what is still too long at the next; join neighbours while they fit."""
        if not levels or self._fits(*span):
            return [span]
        joined: list[Span] = []
        for part in (part for piece in levels[0](span) for part in self._divide(piece, levels[1:])):
            if joined and self._fits(joined[-1][0], part[1]):
                joined[-1] = (joined[-1][0], part[1])
            else:
                joined.append(part)
        return joined

    def _stanzas(self, span: Span) -> list[Span]:
        return self._split(span, r"\n[^\S\n]*\n")

    def _lines(self, span: Span) -> list[Span]:
        return self._split(span, r"\n")

    def _split(self, span: Span, separator: str) -> list[Span]:
        ends = [match.end() for match in re.compile(separator).finditer(self._text, *span)]
        spans = [trim(self._text, *part) for part in zip([span[0], *ends], [*ends, span[1]], strict=True)]
        return [part for part in spans if part[0] < part[1]]

    def _sentences(self, span: Span) -> list[Span]:
        return sentence_spans(self._text, *span)

    def _words(self, span: Span) -> list[Span]:
        """Cut after white space where there is some, never inside a grapheme."""
        text, (start, end) = self._text, span
        parts = []
        while (limit := self._furthest(start, end)) < end:
            space = max(text.rfind(" ", (start + limit) // 2, limit), text.rfind("\n", start + 1, limit))
            cut = space if space > start else grapheme_boundary(text, limit)
            if cut <= start:
                cut = _next_boundary(text, max(limit, start + 1))
            parts.append(trim(text, start, cut))
            start = trim(text, cut, end)[0]
        return [part for part in [*parts, (start, end)] if part[0] < part[1]]

    def _furthest(self, start: int, end: int) -> int:
        """Return the greatest offset, at most `end`, up to which the text from `start` fits."""
        fits, step = start, self._budget
        while fits < end and self._fits(start, min(fits + step, end)):
            fits, step = min(fits + step, end), 2 * step
        beyond = min(fits + step, end)
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self._fits(start, middle) else (fits, middle)
        return fits


def _next_boundary(text: str, position: int) -> int:
    """Return the first grapheme boundary at or after `position`."""
    while position < len(text) and grapheme_boundary(text, position) != position:
        position += 1
    return position
