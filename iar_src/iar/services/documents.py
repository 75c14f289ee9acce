"""Files and rows as plain text: one item in, a document with where it is from, or the reason why there is none."""

import io
import logging
import re
import zipfile
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from iar.methods.digest import digest_bytes, digest_json
from iar.methods.encoding import KNOWN_IN_WORDS, decode
from iar.methods.plain_text import PlainText, clean_line, join_lines, parse_html, parse_markdown, parse_plain
from iar.records import Document, Reject, SourceFacts
from iar.services.sources import STEP, Item, row_digest

if TYPE_CHECKING:
    from pypdf import PageObject

_PARSERS = {"text/plain": parse_plain, "text/markdown": parse_markdown, "text/html": parse_html}
# A small archive can unpack to any size.
MOST_UNPACKED_BYTES = 256 << 20


class _Skipped(Exception):
    """An item that gives no document; the message is the reason."""


def convert(item: Item) -> tuple[Document, SourceFacts] | Reject:
    """Return an item's document, `text` cleaned, and where it is from; a Reject where it has no text."""
    try:
        plain, encoding, note = _parse(item)
        plain = PlainText(_whole(plain.title), tuple(map(_whole, plain.paragraphs)))
        if not plain.paragraphs:
            raise _Skipped(_why_empty(item.media_type, plain))
    except _Skipped as skipped:
        return Reject(STEP, item.source, str(skipped), "", outcome="failed")
    digest = digest_bytes(item.content) if isinstance(item.content, bytes) else row_digest(item)
    title = plain.title or PurePosixPath(item.source).stem
    document_id = "doc-" + digest_json([item.path, digest])[:12]
    document = Document(document_id, title, plain.text, item.source, item.media_type, digest)
    return document, SourceFacts(
        document_id, item.alias, item.collection, item.place, item.revision, item.licence, encoding, "", note
    )


def _parse(item: Item) -> tuple[PlainText, str, str]:
    """Return the plain text, the encoding ("" for formats that know their own) and a note."""
    if isinstance(item.content, str):
        return _parse_row(item.title, item.content), "", ""
    if item.media_type == "application/pdf":
        plain, note = _parse_pdf(item.content)
        return plain, "", note
    if item.media_type.endswith("wordprocessingml.document"):
        return _parse_docx(item.content), "", ""
    found = decode(item.content, _declared(item.content) if item.media_type == "text/html" else "")
    if found is None:
        raise _Skipped(f"text in no known encoding ({KNOWN_IN_WORDS})")
    return _PARSERS[item.media_type](found.text), found.encoding, found.note


def _whole(text: str) -> str:
    """Return `text` with the halves of each character put together. Raises _Skipped for a half without the other."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise _Skipped("text with half a character") from error


def _why_empty(media_type: str, plain: PlainText) -> str:
    if plain.title:
        return "no text beyond the title"
    return "PDF without text (scanned?)" if media_type == "application/pdf" else "empty"


def _parse_row(title: str, text: str) -> PlainText:
    """Parse a row's text; without a title of its own a first line can be it, but not the only one."""
    if not title and "\n" in text.strip():
        return parse_plain(text)
    return PlainText(clean_line(title), parse_plain(f"-\n\n{text}").paragraphs)


def _declared(data: bytes) -> str:
    """Return the charset that a page names for itself, "" where it names none."""
    found = re.search(rb"charset\s*=\s*[\"']?\s*([\w.:-]+)", data[:4096], re.IGNORECASE)
    return found[1].decode("ascii", "replace") if found else ""


def _parse_docx(data: bytes) -> PlainText:
    """Parse a Word document by way of HTML: headings, lists and tables stay, pictures go."""
    import mammoth

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_UNPACKED_BYTES:
                raise _Skipped(f"Word document that unpacks to more than {MOST_UNPACKED_BYTES >> 20} MiB")
        html = mammoth.convert_to_html(
            io.BytesIO(data),
            style_map="p[style-name='Title'] => h1:fresh",
            convert_image=mammoth.images.img_element(lambda image: {}),
        ).value
    except _Skipped:
        raise
    # mammoth raises whatever zip and XML parsers trip over.
    except Exception as error:
        raise _Skipped(f"damaged Word document ({type(error).__name__})") from error
    return parse_html(html)


def _parse_pdf(data: bytes) -> tuple[PlainText, str]:
    """Parse a PDF; the note counts pages without text. Raises _Skipped for a damaged or encrypted one."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        title = clean_line(str((reader.metadata and reader.metadata.title) or ""))
        pages = _without_running_lines([_page_lines(page) for page in reader.pages])
    except pypdf.errors.FileNotDecryptedError as error:
        raise _Skipped("encrypted PDF") from error
    # pypdf raises whatever its parser trips over, from KeyError to RecursionError.
    except Exception as error:
        raise _Skipped(f"damaged PDF ({type(error).__name__})") from error
    paragraphs = _join_pages(pages)
    if paragraphs and (not title or paragraphs[0] == title):
        title, paragraphs = paragraphs[0], paragraphs[1:]
    elif not paragraphs:
        title = ""
    blank = sum(not any(page) for page in pages)
    return PlainText(title, tuple(paragraphs)), f"{blank} of {len(pages)} pages without text" if blank else ""


def _page_lines(page: "PageObject") -> list[str]:
    """Return the page's lines in reading order, with "" where a paragraph ends."""
    lines = [clean_line(line) for line in page.extract_text().split("\n")]
    lines = [line for line in lines if line]
    # Plain extraction reads columns in order but drops vertical gaps; the layout mode shows the gaps.
    layout = [clean_line(line) for line in page.extract_text(extraction_mode="layout").split("\n")]
    ends = {line for line, below in zip(layout, [*layout[1:], ""], strict=True) if line and not below}
    gaps_known = bool(ends) and len(ends) <= max(1, 2 * len(lines) // 3)
    width = max(map(len, lines), default=0)
    marked: list[str] = []
    for line in lines:
        is_short_end = len(line) < 0.8 * width and line.endswith((".", "!", "?", "。", '."'))
        marked += [line, ""] if (line in ends if gaps_known else is_short_end) else [line]
    return marked


def _without_running_lines(pages: list[list[str]]) -> list[list[str]]:
    """Drop page numbers, and lines repeated at the top or bottom of most pages."""
    edges = Counter(line for page in pages for line in {*page[:1], *[line for line in page if line][-1:]})
    running = {line for line, count in edges.items() if len(pages) >= 3 and count > len(pages) / 2}
    page_number = re.compile(r"[-–\s]*\d{1,4}[-–\s]*")
    return [[line for line in page if line not in running and not page_number.fullmatch(line)] for page in pages]


def _join_pages(pages: list[list[str]]) -> list[str]:
    """Join the lines into paragraphs; a page end inside a sentence ends no paragraph."""
    lines: list[str] = []
    for page in pages:
        while lines and not lines[-1] and page and page[0][:1].islower():
            lines.pop()
        lines += [*page, ""]
    paragraphs: list[str] = []
    current: list[str] = []
    for line in lines:
        if line:
            current.append(line)
        elif current:
            paragraphs.append(join_lines(current))
            current = []
    return paragraphs
