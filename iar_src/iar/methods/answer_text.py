"""Text of answers as comparable tokens: Unicode forms, case, numbers, units, CJK by character."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


ARTICLES = _set("a an the")
FUNCTION_WORDS = ARTICLES | _set(
    "about after also although and answer are around as at be because been before but by can did do does during "
    "each every for from had has have he her his how i if in into is it its just most of on only or our she so "
    "some such than that their them then there these they this those to too very was we were what when where "
    "which while who whom whose why will with would you your"
)
TITLES = _set("captain doctor dr lady lord master miss mr mrs ms professor saint sir st")
NEGATIONS = _set(
    "no not never neither nor without except cannot nicht kein keine keiner nie niemals pas jamais non nunca jamás "
    "não не ни нет никогда"
)
ALTERNATIVES = _set("or oder ou oppure или 或")
CONJUNCTIONS = _set("and und et y и 和 与")

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_NUMBER_WORDS = {word: value for value, word in enumerate(re.split(" ", _SMALL))}
_TENS = {
    word: 10 * tens
    for tens, word in enumerate(re.split(" ", "twenty thirty forty fifty sixty seventy eighty ninety"), 2)
}

_UNIT_NAMES = {
    "km": "kilometre kilometres kilometer kilometers",
    "m": "metre metres meter meters",
    "cm": "centimetre centimetres centimeter centimeters",
    "mm": "millimetre millimetres millimeter millimeters",
    "mile": "miles mi",
    "foot": "feet ft",
    "inch": "inches",
    "kg": "kilogram kilograms kilogramme kilogrammes",
    "g": "gram grams gramme grammes",
    "tonne": "tonnes ton tons",
    "pound": "pounds lb lbs",
    "litre": "litres liter liters l",
    "celsius": "",
    "fahrenheit": "",
    "percent": "",
    "second": "seconds",
    "minute": "minutes min",
    "hour": "hours h",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years",
    "decade": "decades",
    "century": "centuries",
}
UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in [unit, *names.split()]}
_CJK_UNITS = {"公里": "km", "千米": "km", "厘米": "cm", "毫米": "mm", "米": "m", "公斤": "kg", "千克": "kg", "克": "g"}

_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=\d)[,'\u00a0\u2009\u202f](?=\d{3}(?!\d))"), ""),  # 11,400 and 11 400 with a thin space
    (re.compile(r"\bcan't\b", re.I), "can not"),
    (re.compile(r"n't\b", re.I), " not"),
    (re.compile(r"'s\b", re.I), ""),
    (re.compile(r"%|\bper cent\b", re.I), " percent "),
    (re.compile(r"°\s?c\b|\bdegrees? (?:celsius|centigrade)\b", re.I), " celsius "),
    (re.compile(r"°\s?f\b|\bdegrees? fahrenheit\b", re.I), " fahrenheit "),
    (re.compile(r"(?<=\d)(?:st|nd|rd|th)\b", re.I), ""),
    (re.compile("不是|不在|没有|并非|而非|ではありません|ではない|じゃない"), " not "),
    (re.compile(r"(?<=\s)o(?=\s)|または"), " or "),  # Spanish and Italian "o": a capital may be an initial
    (re.compile(r"(?<=\d)\s?(" + "|".join(_CJK_UNITS) + ")"), lambda match: f" {_CJK_UNITS[match[1]]} "),
    (re.compile(r"(?<=\w)\s?/\s?(?=\w)"), " or "),
]
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"\d+(?:\.\d+)?|[{_CJK}]|(?:(?![{_CJK}])[^\W\d_])(?:(?![{_CJK}])[^\W\d_]|[\u0300-\u036f])*|\S")
_CLAUSE_ENDS = ".,;:!?|()[]、。・"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Token:
    """A normalised word, number or CJK character; `clause` counts the punctuation before it."""

    text: str
    capital: bool
    clause: int
    after_article: bool = False

    @property
    def is_number(self) -> bool:
        """True for a number in digits; number words up to 99 are digits already."""
        return _NUMBER.fullmatch(self.text) is not None


Tokens = tuple[Token, ...]


@lru_cache(maxsize=4096)
def tokenise(text: str) -> Tokens:
    """Return the tokens of `text` without articles and invisible characters; number words become digits."""
    tokens: list[Token] = []
    clause = 0
    previous = ""
    pieces = _PIECE.findall(_clean(text))
    for piece, after in zip(pieces, [*pieces[1:], ""], strict=False):
        folded = piece.casefold()
        initial = piece == "A" and after == "."
        if not piece[0].isalnum():
            clause += piece in _CLAUSE_ENDS and bool(tokens)
        elif previous in _TENS and _NUMBER_WORDS.get(folded, 0) in range(1, 10):
            tokens[-1] = replace(tokens[-1], text=str(_TENS[previous] + _NUMBER_WORDS[folded]))
        elif initial or folded not in ARTICLES:
            tokens.append(Token(_canonical(folded), piece[0].isupper(), clause, previous in ARTICLES))
        previous = previous if piece == "-" else folded
    return tuple(tokens)


def words(tokens: Sequence[Token]) -> list[str]:
    """Return the bare texts of tokens."""
    return [token.text for token in tokens]


def stem(word: str) -> str:
    """Return a word without its commonest English endings; words under five letters and other scripts stay."""
    for ending in ("ing", "ies", "ed", "es", "ly", "s"):
        if len(word) >= 5 and word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def split_items(tokens: Sequence[Token]) -> list[Tokens]:
    """Return the parts of a list, none empty: separated by punctuation, line ends, "and" or "or"."""
    items: list[list[Token]] = []
    clause = -1
    for token in tokens:
        joint = token.text in ALTERNATIVES or token.text in CONJUNCTIONS
        if joint or token.clause != clause:
            items.append([])
        clause = token.clause
        if not joint:
            items[-1].append(token)
    return [tuple(item) for item in items if item]


def ngrams(tokens: Sequence[Token]) -> Counter[str]:
    """Count character 3-grams of the tokens joined and padded by spaces."""
    text = f" {' '.join(words(tokens))} "
    return Counter(text[index : index + 3] for index in range(len(text) - 2))


def f_score(shared: float, said: float, wanted: float) -> float:
    """Return the harmonic mean of precision shared/said and recall shared/wanted, in [0, 1]."""
    return 2 * shared / (said + wanted) if shared else 0.0


def _clean(text: str) -> str:
    # Thin spaces are rewritten before NFKC, which would turn them into plain ones.
    text = _REWRITES[0][0].sub("", text.replace("\u2019", "'").replace("\n", " | "))
    text = unicodedata.normalize("NFKC", text)
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _canonical(word: str) -> str:
    if word in _NUMBER_WORDS:
        return str(_NUMBER_WORDS[word])
    if word in _TENS:
        return str(_TENS[word])
    if word.isdigit():
        return str(int(word))
    return UNITS.get(word, word)
