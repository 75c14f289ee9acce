"""Text measures shared by chunking, anchors, questions and deduplication; offsets in code points."""

import re
import unicodedata
from collections.abc import Iterator

import regex

from iar.methods.lexicon import ABBREVIATIONS

_WIDE = r"\p{Han}\p{Hiragana}\p{Katakana}"
_WORD = regex.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+(?:[-'’.,][^\W{_WIDE}]+)*", flags=regex.V1)
_WIDE_WORD = regex.compile(rf"[{_WIDE}]")
_CLOSERS = "\"'”’»)\\]」』》）"
_SENTENCE_END = regex.compile(rf"[.!?…؟۔][{_CLOSERS}]*(?=\s|$)|[。！？｡।][{_CLOSERS}]*|\n+")
_FENCE = re.compile(r"^(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_SPACE = re.compile(r"\s*")
_MONTH_YEAR = re.compile(r"[^\W\d_]+ \d{4}\b")
_BULLET = re.compile(r"\s*(?:[-*+•·–]|\d{1,2}[.)])\s+")


def count_words(text: str) -> int:
    """Return the number of words; each Han or kana character counts as one."""
    return sum(1 for _ in _WORD.finditer(text))


def words_of(text: str) -> list[str]:
    """Return the words of `text` after compatibility normalisation and case folding."""
    words: list[str] = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return words


def is_wide(word: str) -> bool:
    """Tell whether a word of `words_of` is a single Han or kana character."""
    return _WIDE_WORD.fullmatch(word) is not None


def normalise(text: str) -> str:
    """Return `text` as its folded words with single spaces: equal for texts that differ in form only."""
    return " ".join(words_of(text))


def character_ngrams(text: str, size: int = 5) -> frozenset[str]:
    """Return the character n-grams of the normalised text; a shorter text is its own only n-gram."""
    return ngrams_of(normalise(text), size)


def ngrams_of(folded: str, size: int = 5) -> frozenset[str]:
    """Return the character n-grams of a text that is normalised already."""
    return frozenset([folded[i : i + size] for i in range(max(1, len(folded) - size + 1))])


def word_ngrams(text: str, size: int = 8) -> frozenset[tuple[str, ...]]:
    """Return the word n-grams of `text`; empty where it has fewer than `size` words."""
    words = words_of(text)
    return frozenset(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Return |left and right| / |left or right|, 1.0 for two empty sets."""
    shared = len(left & right)
    union = len(left) + len(right) - shared
    return shared / union if union else 1.0


def grapheme_boundary(text: str, position: int) -> int:
    """Return the last boundary between graphemes at or before `position`."""
    if position >= len(text):
        return len(text)
    # Looking back over a short window is enough: no natural grapheme is longer.
    start = max(0, position - 32)
    boundary = start
    for match in regex.finditer(r"\X", text, pos=start, endpos=min(len(text), position + 32)):
        if match.start() > position:
            break
        boundary = match.start()
    return boundary


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def after_bullet(text: str, start: int, end: int) -> int:
    """Return `start`, or the offset after a list marker that stands there."""
    match = _BULLET.match(text, start, end)
    return match.end() if match else start


def code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of fenced code, fences included; unlike in CommonMark, an open fence is no code."""
    start, fence = 0, ""
    for match in _FENCE.finditer(text):
        if not fence:
            start, fence = match.start(), match[1]
        elif match[1].startswith(fence) and not match[2].strip():
            yield start, match.end()
            fence = ""


def _ends_sentence(text: str, match: "regex.Match[str]") -> bool:
    """Tell a sentence end from a full stop after an abbreviation, an initial or a list number."""
    if match.group()[0] != ".":
        return True
    # Looked at in place: a copy of the rest at each full stop would cost the square of the text.
    following = _SPACE.match(text, match.end())
    after = following.end() if following else match.end()
    # "3. Oktober 1911" goes on after its ordinal.
    is_ordinal = _MONTH_YEAR.match(text, after) and text[match.start() - 1].isdigit()
    if text[after : after + 1].islower() or is_ordinal:
        return False
    before = re.split(r"[\s(\"“]", text[max(0, match.start() - 24) : match.start()])[-1]
    plain = before.replace(".", "").casefold()
    is_initial = len(before) == 1 and before.isupper()
    is_list_number = before.isdigit() and _opens_line(text, match.start() - len(before))
    return not (is_initial or is_list_number or plain in ABBREVIATIONS)


def _opens_line(text: str, position: int) -> bool:
    """Tell whether nothing but spaces stands before `position` on its line."""
    while position and text[position - 1] == " ":
        position -= 1
    return not position or text[position - 1] == "\n"


def sentence_spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the trimmed spans of the sentences in text[start:end]; a line break always ends one."""
    spans = []
    begin = start
    for match in _SENTENCE_END.finditer(text, start, end):
        if _ends_sentence(text, match):
            spans.append(trim(text, begin, match.end()))
            begin = match.end()
    spans.append(trim(text, begin, end))
    return [span for span in spans if span[0] < span[1]]


def is_heading(line: str) -> bool:
    """Tell whether a paragraph reads as a heading: one short line with no end of sentence, no list item."""
    return (
        0 < len(line) <= 80
        and "\n" not in line
        and " | " not in line
        and not re.search(r"[.!?:;,。！？：；，…][\"'”’)]*$", line)
        and not _BULLET.match(line)
    )
