"""Reads a folder of documents (.txt .md .html .pdf) as plain text; whatever is left out has a reason."""

import logging
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from iar.errors import UserError
from iar.methods.digest import digest_file, digest_json
from iar.methods.plain_text import PlainText, clean_line, join_lines, parse_html, parse_markdown, parse_plain
from iar.records import Document, Reject

if TYPE_CHECKING:
    from pypdf import PageObject

MEDIA_TYPES = {
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".pdf": "application/pdf",
}
_PARSERS = {"text/plain": parse_plain, "text/markdown": parse_markdown, "text/html": parse_html}


class _Skipped(Exception):
    """A file that is left out; the message is the reason."""


def read_documents(folder: Path) -> tuple[list[Document], list[Reject]]:
    """Read all files under `folder` in path order; return the documents and what was left out, with reasons.

    Rejected: unsupported types, hidden files, empty files, PDFs without text, exact duplicates.
    Raises UserError for a missing or empty folder and for a file that cannot be read.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    documents: list[Document] = []
    rejects: list[Reject] = []
    first_with: dict[str, str] = {}
    for path in paths:
        source = path.relative_to(folder).as_posix()
        try:
            document = _read_document(path, source)
        except _Skipped as skipped:
            rejects.append(Reject("documents", source, str(skipped), ""))
            continue
        if twin := first_with.get(document.text):
            rejects.append(Reject("documents", source, "duplicate document", document.title, twin))
            continue
        first_with[document.text] = source
        documents.append(document)
    if not documents:
        raise UserError(_nothing_readable(folder, rejects))
    return documents, rejects


def any_readable(folder: Path) -> bool:
    """Tell whether some file under `folder` gives text; files are read only until one does."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            _read_document(path, path.relative_to(folder).as_posix())
        except _Skipped:
            continue
        return True
    return False


def _nothing_readable(folder: Path, rejects: list[Reject]) -> str:
    if not folder.is_dir():
        return f"documents.path: {folder} is not a folder; set it to a folder with .txt .md .html .pdf files"
    reasons = "; ".join(f"{count} x {reason}" for reason, count in Counter(r.reason for r in rejects).most_common(3))
    return (
        f"documents.path: {folder} has no readable document (.txt .md .html .pdf); "
        f"{f'left out: {reasons}; ' if reasons else ''}put documents there or point documents.path elsewhere"
    )


def _read_document(path: Path, source: str) -> Document:
    """Read one file. Raises _Skipped with the reason where there is nothing to read."""
    if any(part.startswith(".") for part in Path(source).parts):
        raise _Skipped("hidden file")
    media_type = MEDIA_TYPES.get(path.suffix.lower())
    if media_type is None:
        raise _Skipped(f"unsupported type {path.suffix.lower() or '(no extension)'}")
    try:
        source_digest = digest_file(path)
        plain = _parse_pdf(path) if media_type == "application/pdf" else _PARSERS[media_type](_decode(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); allow reading it or move it away") from error
    if not plain.paragraphs:
        raise _Skipped(_why_empty(media_type, plain))
    title = plain.title or Path(source).stem
    document_id = "doc-" + digest_json([source, source_digest])[:12]
    return Document(document_id, title, plain.text, source, media_type, source_digest)


def _why_empty(media_type: str, plain: PlainText) -> str:
    if plain.title:
        return "no text beyond the title"
    return "PDF without text (scanned?)" if media_type == "application/pdf" else "empty file"


def _decode(path: Path) -> str:
    """Return the file's text: UTF-8, UTF-16 with a byte order mark, or Windows-1252 where that is plausible."""
    data = path.read_bytes()
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    for name in (encoding, "cp1252"):
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        controls = re.search(r"[\x00-\x08\x0e-\x1f]", text)
        # Another 8-bit encoding read as Windows-1252 shows as runs of accented letters, bytes that are no text
        # but open like UTF-16 as code points that do not exist.
        foreign = name == "cp1252" and sum(ord(character) > 127 for character in text) > len(text) // 10
        foreign |= name == "utf-16" and any(unicodedata.category(character) == "Cn" for character in text)
        if not controls and not foreign:
            return text
    raise UserError(f"{path}: is text in no known encoding (UTF-8, UTF-16, Windows-1252); save it as UTF-8")


def _parse_pdf(path: Path) -> PlainText:
    """Parse a PDF. Raises _Skipped for a damaged or encrypted one."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        reader = pypdf.PdfReader(path)
        title = clean_line(str((reader.metadata and reader.metadata.title) or ""))
        pages = _without_running_lines([_page_lines(page) for page in reader.pages])
    except OSError:
        raise
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
    return PlainText(title, tuple(paragraphs))


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
