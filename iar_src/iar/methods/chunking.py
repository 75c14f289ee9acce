"""Documents into chunks: contiguous slices of about one paragraph, cut at paragraph and sentence ends."""

import re

from iar.methods.textnorm import grapheme_boundary, is_heading, sentence_spans, trim
from iar.records import Chunk, Document

Span = tuple[int, int]


def body_start(document: Document) -> int:
    """Return the offset after the title line, or 0 where the text doesn't start with the title."""
    first_line, _, _ = document.text.partition("\n")
    return len(first_line) if document.title and first_line.strip() == document.title.strip() else 0


def paragraph_spans(document: Document) -> list[Span]:
    """Return the trimmed spans of the body's paragraphs; a blank line ends one."""
    text, begin = document.text, body_start(document)
    spans = []
    for match in re.finditer(r"\n[^\S\n]*\n\s*|\Z", text[begin:]):
        spans.append(trim(text, begin, body_start(document) + match.start()))
        begin = body_start(document) + match.end()
    return [span for span in spans if span[0] < span[1]]


def headings(document: Document) -> list[str]:
    """Return the section headings: heading-like paragraphs that another paragraph follows."""
    paragraphs = [document.text[start:end] for start, end in paragraph_spans(document)]
    return [paragraph for paragraph in paragraphs[:-1] if is_heading(paragraph)]


def chunk_document(document: Document, max_characters: int) -> list[Chunk]:
    """Cut the body into chunks of at most `max_characters` code points (a single longer grapheme apart).

    Each chunk is text[start:end] of the document, none is empty, none overlaps, and together they
    hold every non-space character but those of the title line. A heading starts a chunk only
    together with what follows it.
    """
    pieces = [piece for span in paragraph_spans(document) for piece in _split_long(document.text, span, max_characters)]
    chunks = []
    for index, (start, end) in enumerate(_pack(document.text, pieces, max_characters)):
        chunks.append(Chunk(f"{document.id}.{index:03d}", document.id, start, end, document.text[start:end]))
    return chunks


def _pack(text: str, pieces: list[Span], max_characters: int) -> list[Span]:
    """Join neighbouring pieces while they fit; keep headings with their first paragraph."""
    packed: list[Span] = []
    for start, end in pieces:
        fits = packed and end - packed[-1][0] <= max_characters
        if fits and not (is_heading(text[start:end]) and packed[-1][1] - packed[-1][0] > max_characters // 2):
            packed[-1] = (packed[-1][0], end)
        else:
            packed.append((start, end))
    return packed


def _split_long(text: str, span: Span, max_characters: int) -> list[Span]:
    """Cut one paragraph into runs of whole sentences that fit; a longer sentence at words, then graphemes."""
    start, end = span
    if end - start <= max_characters:
        return [span]
    parts: list[Span] = []
    for sentence in sentence_spans(text, start, end):
        for part in _cut(text, sentence, max_characters):
            if parts and part[1] - parts[-1][0] <= max_characters:
                parts[-1] = (parts[-1][0], part[1])
            else:
                parts.append(part)
    return parts


def _cut(text: str, span: Span, max_characters: int) -> list[Span]:
    """Cut an overlong sentence after white space where there is some, never inside a grapheme."""
    start, end = span
    parts = []
    while end - start > max_characters:
        limit = start + max_characters
        space = max(text.rfind(" ", start + max_characters // 2, limit), text.rfind("\n", start + 1, limit))
        cut = space if space > start else grapheme_boundary(text, limit)
        if cut <= start:
            cut = _next_boundary(text, limit)
        parts.append(trim(text, start, cut))
        start = trim(text, cut, end)[0]
    return [part for part in [*parts, (start, end)] if part[0] < part[1]]


def _next_boundary(text: str, position: int) -> int:
    """Return the first grapheme boundary after `position`."""
    while position < len(text) and grapheme_boundary(text, position) != position:
        position += 1
    return position
