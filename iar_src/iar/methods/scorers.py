"""The file filter: every rule is a registered scorer, a row of SCORERS, with the threshold it has in the run file.

Thresholds for repetition are those of Rae et al. 2021 (arXiv 2112.11446, table A1), found on web pages; each row
says on which texts its own scores were looked at, and what they were there.
"""

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from iar.config import FilterSection
from iar.methods.textnorm import words_of

PHRASE_WORDS = 10
LANGUAGE_WINDOW = 150
STOCK_CHARACTERS = 400
# Those with a calibration; the report has a response curve for each, and one for all others.
LANGUAGES = ("en", "zh")
MENU_LINES = 4
MENU_WORDS = 5
# An entry of a menu has a word or two, a line of verse five or so; of Han characters two count as a word.
MENU_MEAN_WORDS = 2.5
# Written varieties that are one language to whoever asks for it.
VARIETIES = {"wuu": "zh", "yue": "zh", "nn": "no"}
_BOILERPLATE = re.compile(
    r"cookies?\b.{0,60}\b(?:accept|consent|polic|use|site)|(?:accept|reject) (?:all )?cookies|privacy policy"
    r"|terms (?:of|and) (?:use|service|conditions)|all rights reserved|©|copyright \d{4}|(?:sign|log) (?:in|up|out)\b"
    r"|subscribe|newsletter|click here|read more|skip to (?:main )?content|share (?:this|on)|follow us|back to top"
    r"|enable javascript|版权所有|隐私政策|用户协议|免责声明|点击(?:这里|此处|查看|关注)|关注我们|返回(?:顶部|首页)"
    # A company is registered and a plan put on file in prose too.
    r"|上一篇|下一篇|扫(?:码|描二维码)|(?:请|立即|免费|用户|会员)(?:先)?(?:登录|注册)|(?:登录|注册)(?:账号|[ /|])"
    r"|^\W*(?:登录|注册)\W*$|ICP备|备案号|转载请注明",
    re.IGNORECASE,
)
_SENTENCE_END = regex.compile(r"[.!?。！？…][\"'”’)」』]*\s*$")
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]")
_NOT_MENU = regex.compile(r"\s*(?:[-*+•·–]|\d)|.*(?: \| |[:：,，;；]\s*$)")


class Reading:
    """A text as the scorers see it; each part is made once, when the first scorer asks for it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def words(self) -> list[str]:
        """The folded words; each Han or kana character is one."""
        return words_of(self.text)

    @functools.cached_property
    def folded(self) -> str:
        """The words with single spaces: what duplicates are found by."""
        return " ".join(self.words)

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines that are not blank."""
        return [line for line in self.text.split("\n") if line.strip()]

    @functools.cached_property
    def languages(self) -> dict[str, float]:
        """Probability of each language, by ISO 639 code, of a beginning, a middle and an end."""
        middle = max(LANGUAGE_WINDOW, len(self.text) // 2)
        windows = (self.text[:LANGUAGE_WINDOW], self.text[middle:][:LANGUAGE_WINDOW])
        end = self.text[max(middle + LANGUAGE_WINDOW, len(self.text) - LANGUAGE_WINDOW) :]
        found: dict[str, float] = {}
        for language, probability in _identifier().rank("\n".join((*windows, end))):
            language = VARIETIES.get(language, language)
            found[language] = found.get(language, 0.0) + probability
        return found

    @property
    def language(self) -> str:
        """The likeliest language."""
        return max(self.languages, key=lambda language: self.languages[language])


@functools.cache
def _identifier() -> Any:
    from py3langid import langid

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


@dataclass(frozen=True)
class Calibration:
    """The texts a scorer's scores were looked at on: language, name, number, and least, median and largest score."""

    language: str
    texts: str
    documents: int
    least: float
    median: float
    largest: float


@dataclass(frozen=True)
class Scorer:
    """A rule of the file filter.

    `keeps` is "at least", "at most" or "below", `setting` its threshold in documents.filter, `origin` where the default
    threshold is from, `reason` what is said of a document that it drops.
    """

    name: str
    meaning: str
    keeps: str
    setting: str
    reason: str
    origin: str
    calibrations: tuple[Calibration, ...]
    score: Callable[[Reading, FilterSection], float]

    def threshold(self, settings: FilterSection) -> float:
        """Return the threshold that a run file sets."""
        return float(getattr(settings, self.setting))

    def passes(self, score: float, settings: FilterSection) -> bool:
        """Tell whether a document with this score is kept."""
        return bool(self.which_pass(np.array(score), settings))

    def which_pass(self, scores: NDArray[np.float64], settings: FilterSection) -> NDArray[np.bool_]:
        """Tell of each score whether a document with it is kept."""
        threshold = self.threshold(settings)
        return np.asarray(scores >= threshold if self.keeps == "at least" else scores <= threshold)


def length(reading: Reading, settings: FilterSection) -> float:
    """Return the number of words."""
    return float(len(reading.words))


def language(reading: Reading, settings: FilterSection) -> float:
    """Return 1 - the probability of the likeliest language that is not wanted; 1.0 where every one is.

    A text too short to tell has no likely language, and is kept.
    """
    if not settings.languages:
        return 1.0
    others = [share for name, share in reading.languages.items() if name not in settings.languages]
    return 1.0 - max(others, default=0.0)


def boilerplate(reading: Reading, settings: FilterSection) -> float:
    """Return the share of characters in lines that are a page's furniture.

    Those are short lines with a stock phrase, and runs of at least MENU_LINES lines of at most MENU_WORDS words, and
    on average of fewer than MENU_MEAN_WORDS, that end no sentence, are no list items and no rows of a table. Verse has
    longer lines; of four Han characters a line and without marks it cannot be told from a menu.
    """
    marked = 0
    for is_menu, group in itertools.groupby(reading.lines, _is_menu):
        lines = list(group)
        menu = is_menu and len(lines) >= MENU_LINES and fmean(map(_size, lines)) < MENU_MEAN_WORDS
        marked += sum(len(line) for line in lines if menu or _is_stock(line))
    return marked / max(1, sum(map(len, reading.lines)))


def _is_stock(line: str) -> bool:
    # A Han character says as much as three letters.
    size = len(line) + 2 * len(_WIDE.findall(line))
    return size <= STOCK_CHARACTERS and _BOILERPLATE.search(line) is not None


def _size(line: str) -> float:
    """Return the words of a line between white space, two Han or kana characters counted as one."""
    return len(_WIDE.sub(" ", line).split()) + len(_WIDE.findall(line)) / 2


def _is_menu(line: str) -> bool:
    return (
        len(line) <= 60 and not _SENTENCE_END.search(line) and not _NOT_MENU.match(line) and _size(line) <= MENU_WORDS
    )


def repeated_lines(reading: Reading, settings: FilterSection) -> float:
    """Return the share of characters in lines that stood before."""
    seen: set[str] = set()
    repeated = 0
    for line in reading.lines:
        if line in seen:
            repeated += len(line)
        seen.add(line)
    return repeated / max(1, sum(map(len, reading.lines)))


def repeated_phrases(reading: Reading, settings: FilterSection) -> float:
    """Return the share of words in runs of PHRASE_WORDS words that stood before."""
    words = reading.words
    phrases = list(zip(*(words[place:] for place in range(PHRASE_WORDS)), strict=False))
    if len(set(phrases)) == len(phrases):
        return 0.0
    seen: set[tuple[str, ...]] = set()
    covered = end = 0
    for start, phrase in enumerate(phrases):
        if phrase in seen:
            covered += start + PHRASE_WORDS - max(start, end)
            end = start + PHRASE_WORDS
        seen.add(phrase)
    return covered / len(words)


_ENGLISH = "examples/documents and examples/more-documents: prose of one subject each"
_CHINESE = "examples/chinese-documents: seven of prose, one of verse"
_MASSIVE_WEB = "the web pages of MassiveWeb (Rae et al. 2021)"
_Scores = tuple[float, float, float]


def _calibrations(english: _Scores, chinese: _Scores) -> tuple[Calibration, ...]:
    return Calibration("en", _ENGLISH, 32, *english), Calibration("zh", _CHINESE, 8, *chinese)


SCORERS = (
    Scorer(
        "length", "words; a Han or kana character is one", "at least", "min_words", "too few words",
        "ours: a shorter text states too little to ask about", _calibrations((223, 236.5, 257), (142, 216.5, 227)),
        length,
    ),
    Scorer(
        "language", "1 - probability of the likeliest language not asked for", "at least", "min_language",
        "another language", "ours, for the model of py3langid", _calibrations((0.9997, 1, 1), (1, 1, 1)), language,
    ),
    Scorer(
        "boilerplate", "share of characters in menus and stock phrases", "at most", "max_boilerplate", "boilerplate",
        "ours: more furniture than text", _calibrations((0, 0, 0), (0, 0, 0)), boilerplate,
    ),
    Scorer(
        "repeated lines", "share of characters in lines that stood before", "at most", "max_repeated_lines",
        "repeated lines", _MASSIVE_WEB, _calibrations((0, 0, 0), (0, 0, 0)), repeated_lines,
    ),
    Scorer(
        "repeated phrases", "share of words in 10-word runs that stood before", "at most", "max_repeated_phrases",
        "repeated phrases", f"three times that of {_MASSIVE_WEB}", _calibrations((0, 0, 0), (0, 0, 0)),
        repeated_phrases,
    ),
)  # fmt: skip
"""The rules, in the order in which a document that fails several is told to be dropped."""


def _by_the_others(reading: Reading, settings: FilterSection) -> float:
    raise TypeError("similarity is to other documents: methods/near_duplicates finds it")


NEAR_DUPLICATE = Scorer(
    "near-duplicate", "Jaccard similarity of character 5-grams to an earlier document", "below", "near_duplicate",
    "near-duplicate document", "ours; 0.8 is usual for web pages (Lee et al. 2022, arXiv 2107.06499)",
    _calibrations((0, 0.113, 0.1592), (0, 0.0139, 0.0412)), _by_the_others,
)  # fmt: skip
