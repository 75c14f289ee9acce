"""Markup and hard-wrapped text into (title, paragraphs): the plain text that all offsets refer to."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import regex

from iar.methods.textnorm import code_spans

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from bs4.element import PageElement, Tag

_BOILERPLATE = {
    *("script", "style", "noscript", "template", "nav", "header", "footer", "aside", "form", "button", "svg", "select"),
    *("head", "title"),
}
_BLOCKS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "blockquote", "table", "dt", "dd", "figcaption", "caption"),
    *("div", "section", "article"),
}
_DELIMITERS = re.compile(r"\\.|\n|\*+|_+")
_LIST_ITEM = re.compile(r"\s*(?:[-*+•·–]|\d{1,2}[.)])\s+")
_HYPHENATED = re.compile(r"[^\W\d_]-")
_IN_WORD = re.compile(r"\w")
_WIDE_END = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}，。！？、；：）」』]")
_FILLER = regex.compile(r"[\p{Cc}\u00ad\u200b\ufeff--[\t\n]]", flags=regex.V1)  # control and zero-width characters


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
    return " ".join(_FILLER.sub("", line).split())


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
    """Parse a text file: the first line that isn't blank is the title where a blank line sets it apart.

    Else it is the first line of hard-wrapped prose, and one that is too long a whole paragraph.
    """
    text = _lines_of(text).strip()
    first, _, rest = text.partition("\n")
    if len(first) > MOST_TITLE_CHARACTERS or not _first_line_stands_apart(text):
        return PlainText("", tuple(_paragraphs(text)))
    return PlainText(clean_line(first), tuple(_paragraphs(rest)))


def parse_markdown(text: str) -> PlainText:
    """Parse Markdown lightly: the first heading, or else a short first paragraph, is the title; markers are removed.

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
    # Of one line before it was joined, that is: hard-wrapped prose is no title.
    if plain and len(plain[0]) <= MOST_TITLE_CHARACTERS and _first_line_stands_apart(text):
        return PlainText(plain[0], tuple(plain[1:]))
    return PlainText("", tuple(plain))


def _first_line_stands_apart(text: str) -> bool:
    """Tell whether a blank line, or the end, follows the first line that isn't blank."""
    _, _, rest = text.strip().partition("\n")
    return not rest.partition("\n")[0].strip()


def _prose(text: str) -> list[str]:
    """Return the paragraphs of Markdown without code blocks; headings keep their marker."""
    text = "".join(_without_comments(text))
    text = re.sub(r"^(?!#)(\S[^\n]*)\n(?:=+|-{3,})[ ]*$", r"# \1", text, flags=re.MULTILINE)
    fence_rule_or_table_line = r"^ {0,3}(?:```|~~~).*$|^ {0,3}(?:[*_-] *){3,}$|^(?=[ :|-]*--)[ :|-]++$"
    text = re.sub(fence_rule_or_table_line, "", text, flags=re.MULTILINE)
    text = re.sub(r"^ {0,3}\|(.*)\|[ ]*$", r"\n\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"^((?:>\s?)+)", "", text, flags=re.MULTILINE)
    # Headings stand alone even where no blank line sets them off.
    text = re.sub(r"^(#{1,6}[ \t].*)$", r"\n\1\n", text, flags=re.MULTILINE)
    return [_strip_inline(part) for part in _paragraphs(text)]


def _without_comments(text: str) -> Iterator[str]:
    """Yield what stands outside HTML comments; one that is never closed is none."""
    begin = 0
    while (start := text.find("<!--", begin)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        yield text[begin:start]
        begin = end + 3
    yield text[begin:]


def _code(block: str) -> str:
    """Return fenced code as it stands, but for control characters and white space at its lines' ends; "" for none."""
    lines = [regex.sub(r"[\p{Cc}--\t]", "", line, flags=regex.V1).rstrip() for line in block.strip("\n").split("\n")]
    return "\n".join(lines) if any(lines[1:-1]) else ""


def _strip_inline(text: str) -> str:
    """Remove emphasis, code and link markers, keeping the words they mark.

    No pattern looks beyond the mark that opens the next of its kind, so that marks without an end cost no square.
    """
    for _ in range(2):  # a picture may stand in a link
        text = re.sub(
            r"!?\[([^\[\]]*+)\](?:\((?:[^()\s]|\([^()\s]*+\))*+(?:\s++\"[^\"]*+\")?\)|\[[^\[\]]*+\])", r"\1", text
        )
    text = re.sub(r"<(https?://[^<>]++)>", r"\1", text)
    text = re.sub(r"</?[a-zA-Z][^<>]*+>", "", text)
    text = re.sub(r"(?<!`)`++([^`]++)`++", r"\1", text)
    text = _without_emphasis(text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|>])", r"\1", text)


def _without_emphasis(text: str) -> str:
    """Remove each pair of runs of one to three * or _ on a line that opens before a word and closes after one."""
    opened: dict[str, list[int]] = defaultdict(list)
    pairs = list[tuple[int, int]]()
    for match in _DELIMITERS.finditer(text):
        run, (start, end) = match.group(), match.span()
        before, after = text[start - 1 : start], text[end : end + 1]
        if run == "\n":
            opened.clear()
        elif run[0] == "\\" or len(run) > 3:
            continue
        elif opened[run] and not before.isspace() and not _IN_WORD.match(after):
            pairs.append((opened[run].pop(), start))
            for others in opened.values():
                while others and others[-1] > pairs[-1][0]:  # what is opened within a pair ends there
                    others.pop()
        elif after and not after.isspace() and not _IN_WORD.match(before):
            opened[run].append(start)
    drops = sorted(place for pair in pairs for place in pair)
    ends = [_DELIMITERS.match(text, place).end() for place in drops]  # type: ignore[union-attr]
    return "".join(text[begin:end] for begin, end in zip([0, *ends], [*drops, len(text)], strict=True))


def _main_part(soup: "BeautifulSoup") -> "Tag":
    """Return the element that holds all of what the page marks as its content, or else the whole page."""
    for name in ("main", "article"):
        outermost = list(_outermost(soup, (name,)))
        if outermost:
            return outermost[0] if len(outermost) == 1 else soup.body or soup
    return soup.body or soup


def _outermost(root: "Tag", names: Sequence[str]) -> "Iterator[Tag]":
    """Yield the elements of these names below `root` that are in no other of them."""
    from bs4 import Tag

    waiting = root.contents[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tag) and node.name in names:
            yield node
        elif isinstance(node, Tag) and node.name not in _BOILERPLATE:
            waiting += node.contents[::-1]


def _text_of(root: "Tag", marks_blocks: bool = False) -> Iterator[str]:
    """Yield the text below `root` in order; marks_blocks: with a NUL at both ends of each block.

    Each node is looked at once, however deep it is nested: to change the tree costs its depth at every change.
    """
    from bs4.element import CData, NavigableString, Tag

    waiting: list[PageElement | str] = [*root.contents[::-1]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tag) and node.name not in _BOILERPLATE:
            if node.name == "br":
                yield " "
            elif marks_blocks and node.name == "tr":
                cells = [clean_line(" ".join(_text_of(cell))) for cell in _outermost(node, ("td", "th"))]
                yield f"\0{' | '.join(cell for cell in cells if cell)}\0"
                continue
            elif marks_blocks and node.name == "pre":
                code = "".join(_text_of(node)).strip("\n")
                yield "\0" + _code(f"```\n{code}\n```") + "\0"
                continue
            elif marks_blocks and node.name in _BLOCKS:
                yield "\0- " if node.name == "li" else "\0"
                waiting.append("\0")
            waiting += node.contents[::-1]
        elif type(node) in (str, NavigableString, CData):
            yield str(node)


def parse_html(markup: str) -> PlainText:
    """Parse HTML: the first h1, or else the title element, is the title; navigation and scripts are dropped."""
    from bs4 import BeautifulSoup

    # Nothing after the last ">" is a tag; the parser would look for the end of each to the end of the text.
    tags, end, rest = markup.rpartition(">")
    soup = BeautifulSoup(tags + end + rest.replace("<", "&lt;"), "html.parser")
    heading = soup.find("h1")
    title_tag = heading or soup.find("title")
    title = clean_line(title_tag.get_text(" ")) if title_tag else ""
    if heading:
        heading.extract()
    # The block ends are marked in the text itself, so that text outside any block is kept too.
    marked = "".join(_text_of(_main_part(soup), marks_blocks=True))
    parts = [part if part.startswith("```\n") else clean_line(part.replace("\n", " ")) for part in marked.split("\0")]
    return PlainText(title, tuple(part for part in parts if part and part != "-"))
