"""Markup and hard-wrapped text into (title, paragraphs): the plain text that all offsets refer to."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import regex

from iar.methods.textnorm import code_spans

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

_BOILERPLATE = re.compile(
    r"^(?:script|style|noscript|template|nav|header|footer|aside|form|button|svg|select|head|title)$"
)
_BLOCKS = re.compile(r"^(?:p|h[1-6]|li|pre|blockquote|table|dt|dd|figcaption|caption|div|section|article)$")
_LIST_ITEM = re.compile(r"\s*(?:[-*+•·–]|\d{1,2}[.)])\s+")
_HYPHENATED = re.compile(r"[^\W\d_]-")
_WIDE_END = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}，。！？、；：）」』]")


MOST_TITLE_CHARACTERS = 200


@dataclass(frozen=True)
class PlainText:
    """A document without markup. `paragraphs` doesn't repeat the title; `title` is "" where none was found."""

    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The title and the paragraphs, a blank line between each two."""
        return "\n\n".join(part for part in (self.title, *self.paragraphs) if part)


def clean_line(line: str) -> str:
    """Return `line` with single spaces, without control and zero-width filler characters."""
    printable = regex.sub(r"[\p{Cc}\u00ad\u200b\ufeff--[\t\n]]", "", line, flags=regex.V1)
    return " ".join(printable.split())


def join_lines(lines: Iterable[str]) -> str:
    """Join the lines of one paragraph: hyphenation undone, list items kept on lines of their own."""
    parts = list[str]()
    # The last two characters decide; a search through all that is joined would cost its square.
    tail = ""
    for line in filter(None, map(clean_line, lines)):
        if not parts:
            between = ""
        elif _LIST_ITEM.match(line):
            between = "\n"
        elif _HYPHENATED.fullmatch(tail) and line[0].islower():
            parts[-1], tail, between = parts[-1][:-1], tail[:-1], ""
        else:
            between = "" if _WIDE_END.fullmatch(tail[-1]) else " "
        parts.append(between + line)
        tail = (tail + parts[-1])[-2:]
    return "".join(parts)


def _paragraphs(text: str) -> list[str]:
    """Split at blank lines and join each part's lines."""
    parts = (join_lines(part.split("\n")) for part in re.split(r"\n[^\S\n]*\n", text))
    return [part for part in parts if part]


def _lines_of(text: str) -> str:
    """Return `text` with every kind of line end as a newline, form feeds as blank lines."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n").replace("\u2028", "\n")


def parse_plain(text: str) -> PlainText:
    """Parse a text file: the first line that isn't blank is the title, unless it is a whole paragraph."""
    text = _lines_of(text).strip()
    first, _, rest = text.partition("\n")
    if len(first) > MOST_TITLE_CHARACTERS:
        return PlainText("", tuple(_paragraphs(text)))
    return PlainText(clean_line(first), tuple(_paragraphs(rest)))


def parse_markdown(text: str) -> PlainText:
    """Parse Markdown lightly: the first heading, or else the first line, is the title; markers are removed.

    Fenced code stands as it is, fences included.
    """
    text = re.sub(r"\A---\n.*?\n---\n", "", _lines_of(text), flags=re.DOTALL)
    parts, begin = list[str](), 0
    for start, end in code_spans(text):
        parts += [*_prose(text[begin:start]), _code(text[start:end])]
        begin = end
    paragraphs = [part for part in (*parts, *_prose(text[begin:])) if part]
    title_index = next((i for i, part in enumerate(paragraphs) if re.match(r"#{1,6} ", part)), None)
    plain = [re.sub(r"^#{1,6} +(.*?)(?: +#+)?$", r"\1", part) for part in paragraphs]
    if title_index is not None:
        title = plain.pop(title_index)
        return PlainText(title, tuple(plain))
    return PlainText(plain[0], tuple(plain[1:])) if plain else PlainText("", ())


def _prose(text: str) -> list[str]:
    """Return the paragraphs of Markdown without code blocks; headings keep their marker."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(?!#)(\S[^\n]*)\n(?:=+|-{3,})[ ]*$", r"# \1", text, flags=re.MULTILINE)
    fence_rule_or_table_line = r"^ {0,3}(?:```|~~~).*$|^ {0,3}(?:[*_-] *){3,}$|^\|?[ :|-]*-{2}[ :|-]*$"
    text = re.sub(fence_rule_or_table_line, "", text, flags=re.MULTILINE)
    text = re.sub(r"^ {0,3}\|(.*)\|[ ]*$", r"\n\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"^((?:>\s?)+)", "", text, flags=re.MULTILINE)
    # Headings stand alone even where no blank line sets them off.
    text = re.sub(r"^(#{1,6}[ \t].*)$", r"\n\1\n", text, flags=re.MULTILINE)
    return [_strip_inline(part) for part in _paragraphs(text)]


def _code(block: str) -> str:
    """Return fenced code as it stands, but for control characters and white space at its lines' ends; "" for none."""
    lines = [regex.sub(r"[\p{Cc}--\t]", "", line, flags=regex.V1).rstrip() for line in block.strip("\n").split("\n")]
    return "\n".join(lines) if any(lines[1:-1]) else ""


def _strip_inline(text: str) -> str:
    """Remove emphasis, code and link markers, keeping the words they mark."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)\s]*(?:\s+\"[^\"]*\")?\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"<(https?://[^>]+)>", r"\1", text)
    text = re.sub(r"</?[a-zA-Z][^>]*>", "", text)
    text = re.sub(r"`+([^`]+)`+", r"\1", text)
    text = re.sub(r"(?<![\w*])(\*{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])", r"\2", text)
    text = re.sub(r"(?<![\w_])(_{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w_])", r"\2", text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|>])", r"\1", text)


def _main_part(soup: "BeautifulSoup") -> "Tag":
    """Return the element that holds all of what the page marks as its content, or else the whole page."""
    for name in ("main", "article"):
        outermost = [tag for tag in soup.find_all(name) if not tag.find_parent(name)]
        if outermost:
            return outermost[0] if len(outermost) == 1 else soup.body or soup
    return soup.body or soup


def parse_html(markup: str) -> PlainText:
    """Parse HTML: the first h1, or else the title element, is the title; navigation and scripts are dropped."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(markup, "html.parser")
    heading = soup.find("h1")
    title_tag = heading or soup.find("title")
    title = clean_line(title_tag.get_text(" ")) if title_tag else ""
    if heading:
        heading.extract()
    for tag in soup.find_all(_BOILERPLATE):
        tag.decompose()
    for line_break in soup.find_all("br"):
        line_break.replace_with(" ")
    root = _main_part(soup)
    for row in root.find_all("tr"):
        cells = [clean_line(cell.get_text(" ")) for cell in row.find_all(["td", "th"])]
        row.string = f"\0{' | '.join(cell for cell in cells if cell)}\0"
    for code in root.find_all("pre"):
        code.string = "\0" + _code(f"```\n{code.get_text().strip(chr(10))}\n```") + "\0"
    for item in root.find_all("li"):
        item.insert(0, "- ")
    # Marks the block ends in the text itself, so that text outside any block is kept too.
    for block in root.find_all(_BLOCKS):
        block.insert(0, "\0")
        block.append("\0")
    parts = [
        part if part.startswith("```\n") else clean_line(part.replace("\n", " "))
        for part in root.get_text().split("\0")
    ]
    return PlainText(title, tuple(part for part in parts if part and part != "-"))
