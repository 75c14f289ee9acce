"""Finds a chunk's anchors: names, quoted and defined terms, dates, amounts, each literally at its offsets.

The rules look at capitals, quotation marks and digits, so they hold for any script that has them; the
small English tables in lexicon.py only sharpen them.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from iar.methods.lexicon import (
    FUNCTION_WORDS,
    HAN_MEASURES,
    MEASURES,
    MONTHS,
    NAME_PARTICLES,
    NAMING_WORDS,
    NUMBER_WORDS,
)
from iar.methods.textnorm import count_words, normalise, sentence_spans
from iar.methods.title_index import TitleIndex
from iar.records import Anchor, Chunk, Document, Reject

# The more telling kind first.
KINDS = ("title", "name", "quoted", "defined", "date", "quantity", "number")
MAX_ANCHOR_WORDS = 8

_MONTH = "|".join(MONTHS)
_QUOTED = regex.compile(
    r"\"([^\"\n]{2,60})\"|“([^”\n]{1,60})”|«\s?([^»\n]{1,60}?)\s?»|„([^“”\n]{1,60})[“”]"
    r"|《([^》\n]{1,30})》|「([^」\n]{1,30})」|『([^』\n]{1,30})』"
)
_CAPITAL = r"\p{Lu}[\p{L}\p{M}]*(?:['’-]\p{L}[\p{L}\p{M}]*)*['’]?|\p{Lu}\."
_NAME = regex.compile(
    rf"\b(?:{_CAPITAL})(?:\s(?:(?:{'|'.join(sorted(NAME_PARTICLES))})\s){{0,1}}(?:the\s)?(?:{_CAPITAL}))*"
    r"(?:\s(?:of|de|von|van)\s\d{4}\b)?"
    r"|[\p{Katakana}ー]{3,}(?:・[\p{Katakana}ー]+)*"
)
_DATE = regex.compile(
    rf"\b(?:\d{{1,2}}\.?\s(?:{_MONTH})(?:,?\s\d{{4}})?|(?:{_MONTH})\s(?:\d{{1,2}},\s)?\d{{4}}|(?:{_MONTH})\s\d{{1,2}}\b"
    r"|\d{4}-\d{2}-\d{2}|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}\.\s\p{L}{3,}\s\d{4})\b"
    r"|\d{2,4}年(?:\d{1,2}月(?:\d{1,2}日)?)?|\d{1,2}月\d{1,2}日"
)
_DIGITS = (
    r"(?<![[\w.,-]--[\p{Han}\p{Hiragana}\p{Katakana}]])[€$£¥]?"
    r"(?:\d{1,3}(?:[ \u00a0\u202f]\d{3})+|\d+)(?:[.,]\d+)*(?![\d-])"
)
_NUMBER_WORD = rf"(?<![\w-])(?:{'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))})(?![\w-])"
_NUMBER = regex.compile(rf"(?:{_DIGITS}|{_NUMBER_WORD})", regex.IGNORECASE | regex.V1)
_UNIT = regex.compile(
    rf"\s?(?:%|‰|°\p{{L}}?)|(?:{HAN_MEASURES})|\s(\p{{L}}[\p{{L}}\p{{M}}'’-]*)(\sCelsius|\sFahrenheit)?"
)
_PLAIN = r"[\p{Ll}\p{M}'’-]+"
_NAMED = regex.compile(
    rf"\b(?:{'|'.join(NAMING_WORDS)})\s(?:(?:the|a|an)\s)?(?:"
    rf"({_PLAIN})(?=\s(?:{'|'.join(sorted(FUNCTION_WORDS))})\b)|({_PLAIN}(?:\s{_PLAIN}){{0,2}})(?=[,.;:!?)]|$))"
)


@dataclass(frozen=True)
class Corpus:
    """What the other documents tell: words seen in lower case anywhere, and all titles."""

    lower_words: frozenset[str] = frozenset()
    titles: tuple[str, ...] = ()

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Corpus":
        """Collect the corpus facts of `documents`, which are gone through once."""
        lower: set[str] = set()
        titles: set[str] = set()
        for document in documents:
            lower.update(regex.findall(r"\b\p{Ll}[\p{L}\p{M}'’-]*", document.text))
            titles.add(document.title)
        return cls(frozenset(lower), tuple(sorted(titles)))

    @functools.cached_property
    def title_index(self) -> TitleIndex:
        """The titles by their words."""
        return TitleIndex(self.titles)


@dataclass(frozen=True)
class _Find:
    """A possible anchor as offsets in the chunk's text."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class _Drop:
    """A find that is no anchor, why, and which one it repeats."""

    reason: str
    find: _Find
    repeats: _Find | None = None


def find_anchors(
    chunk: Chunk,
    document: Document,
    max_anchors: int,
    corpus: Corpus | None = None,
    rejects: list[Reject] | None = None,
) -> list[Anchor]:
    """Return at most `max_anchors` anchors of `chunk` in text order.

    They are distinct, don't overlap, and are spread over the sentences: each sentence gives its most
    telling one before any gives a second. What stands in the title is no anchor. What is dropped is
    added to `rejects`.
    """
    corpus = corpus or Corpus.of([document])
    dropped: list[_Drop] = []
    finds = _distinct(chunk.text, _without_overlap(_all_finds(chunk.text, document, corpus)), document.title, dropped)
    ordered = _spread(finds, sentence_spans(chunk.text, 0, len(chunk.text)))
    dropped += [_Drop("beyond max_anchors", find) for find in ordered[max_anchors:]]
    if rejects is not None:
        rejects += [_reject(chunk, drop) for drop in dropped]
    kept = sorted(ordered[:max_anchors], key=lambda find: find.start)
    return [
        Anchor(chunk.id, f.kind, chunk.text[f.start : f.end], chunk.start + f.start, chunk.start + f.end) for f in kept
    ]


def _reject(chunk: Chunk, drop: _Drop) -> Reject:
    text = chunk.text[drop.find.start : drop.find.end]
    if drop.repeats is None:
        return Reject("anchors", chunk.id, drop.reason, text)
    start, end = chunk.start + drop.repeats.start, chunk.start + drop.repeats.end
    return Reject("anchors", chunk.id, drop.reason, text, f"{chunk.id}:{start}-{end}", "duplicate")


def _all_finds(text: str, document: Document, corpus: Corpus) -> Iterator[_Find]:
    for title, start, end in corpus.title_index.standing_in(text):
        if title != document.title:
            yield _Find("title", start, end)
    yield from _named_finds(text)
    for match in _QUOTED.finditer(text):
        group = next(index for index, value in enumerate(match.groups(), 1) if value)
        start, end = match.span(group)
        # The comma or full stop that some styles put inside the quotes is no part of the term.
        while end > start and text[end - 1] in ",.;":
            end -= 1
        yield _Find("quoted", start, end)
    for match in _DATE.finditer(text):
        yield _Find("date", *match.span())
    yield from _number_finds(text)
    yield from _name_finds(text, document.text, corpus.lower_words)


def _named_finds(text: str) -> Iterator[_Find]:
    """Find the one to three ordinary words that a sentence says something is called."""
    for match in _NAMED.finditer(text):
        # A capitalised one is found as a name, without the title before it ("named the clerk Ada Lind").
        group = 1 if match.group(1) else 2
        if not FUNCTION_WORDS.intersection(match.group(group).split()):
            yield _Find("defined", *match.span(group))


def _number_finds(text: str) -> Iterator[_Find]:
    for match in _NUMBER.finditer(text):
        digits = match.group()
        unit = _UNIT.match(text, match.end())
        word = (unit.group(1) or "") if unit else ""
        if regex.fullmatch(r"1\d{3}|20\d{2}", digits) and word.casefold() not in MEASURES:
            yield _Find("date", *match.span())
        elif digits.casefold() != "one" and unit and (not word or _is_unit(word, text[unit.end() :])):
            yield _Find("quantity", match.start(), unit.end())
        elif digits.casefold() != "one":
            yield _Find("number", *match.span())


def _is_unit(word: str, rest: str) -> bool:
    """Tell a unit or counted noun from an adjective: a measure, or a plain word that ends its phrase."""
    if word.casefold() in MEASURES:
        return True
    if not word[0].islower() or word in FUNCTION_WORDS or word in NUMBER_WORDS:
        return False
    # A noun after a number above one is a plural: "the other six ran" is no amount of "ran".
    if word.isascii() and not word.endswith("s"):
        return False
    following = regex.match(r"\s(\w+)", rest)
    return following is None or following.group(1) in FUNCTION_WORDS


def _name_finds(text: str, document_text: str, lower_words: frozenset[str]) -> Iterator[_Find]:
    """Find runs of capitalised words; a sentence's first word counts only where it isn't an ordinary word."""
    openings = {start for start, _ in sentence_spans(text, 0, len(text))}
    for match in _NAME.finditer(text):
        start, end = match.span()
        possessive = regex.search(r"['’]s?$", text[start:end])
        end -= len(possessive.group()) if possessive else 0
        opens = start in openings or regex.search(r"[\"“„«(:]\s?$|^[-*•]\s$", text[max(0, start - 2) : start])
        while start < end and _is_ordinary(text[start:end], bool(opens), lower_words):
            first = regex.match(r"\S+\s*", text[start:end])
            start += first.end() if first else end - start
            opens = None
        name = text[start:end]
        # Months and single letters alone tell nothing; a lone first word must show its capital elsewhere too.
        if count_words(name) == 0 or len(name) < 3 or name in MONTHS:
            continue
        if opens and " " not in name and not _stands_within(name, document_text):
            continue
        yield _Find("name", start, end)


def _stands_within(name: str, text: str) -> bool:
    """Tell whether a name stands in `text` after a word in lower case, so not at the opening of a sentence."""
    first = regex.match(r"\w+", name)
    places = _after_lower_case(text).get(first.group(), ()) if first else ()
    return any(text.startswith(name, place) and regex.match(r"\b", text, pos=place + len(name)) for place in places)


@functools.lru_cache(maxsize=2)
def _after_lower_case(text: str) -> dict[str, list[int]]:
    """Return where in a document each word stands that follows one in lower case; remembered from chunk to chunk."""
    places: dict[str, list[int]] = defaultdict(list)
    for match in regex.finditer(r"(?<=\p{Ll},?\s)\w+", text):
        places[match.group()].append(match.start())
    return places


def _is_ordinary(name: str, opens: bool, lower_words: frozenset[str]) -> bool:
    """Tell whether the run's first word is an ordinary word with a capital."""
    first = regex.split(r"\s", name, maxsplit=1)[0]
    word = first[0].lower() + first[1:]
    return word in FUNCTION_WORDS or word in NAME_PARTICLES or (opens and word in lower_words)


def _without_overlap(finds: Iterable[_Find]) -> list[_Find]:
    """Keep, where finds overlap, the longer, then the more telling kind."""
    kept: list[_Find] = []
    ranked = sorted(set(finds), key=lambda find: (find.start - find.end, KINDS.index(find.kind), find.start))
    for find in ranked:
        if all(find.end <= other.start or find.start >= other.end for other in kept):
            kept.append(find)
    return sorted(kept, key=lambda find: find.start)


def _distinct(text: str, finds: list[_Find], title: str, dropped: list[_Drop]) -> list[_Find]:
    """Drop repeated texts, what the title gives away, and what is too long to be an answer."""
    title_words = f" {normalise(title)} "
    seen: dict[str, _Find] = {}
    for find in finds:
        folded = normalise(text[find.start : find.end])
        if folded in seen:
            dropped.append(_Drop("repeated in the chunk", find, seen[folded]))
        elif not folded or f" {folded} " in title_words:
            dropped.append(_Drop("guessable from the title", find))
        elif count_words(text[find.start : find.end]) > MAX_ANCHOR_WORDS:
            dropped.append(_Drop("too long for an answer", find))
        else:
            seen[folded] = find
    return list(seen.values())


def _spread(finds: list[_Find], sentences: list[tuple[int, int]]) -> list[_Find]:
    """Order finds in rounds: each sentence's most telling one, then each sentence's second, and so on."""
    rank: Counter[int] = Counter()
    rounds = []
    for find in sorted(finds, key=lambda f: (KINDS.index(f.kind), f.start)):
        sentence = next((i for i, (start, end) in enumerate(sentences) if start <= find.start < end), -1)
        rounds.append((rank[sentence], KINDS.index(find.kind), find.start, find))
        rank[sentence] += 1
    return [entry[-1] for entry in sorted(rounds, key=lambda entry: entry[:3])]
