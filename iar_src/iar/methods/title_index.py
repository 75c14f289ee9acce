"""Which of many titles stand in a text, found by their words: the work grows with the text, not with the titles."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import regex

_ARTICLE = regex.compile(r"^(?:the|a|an)\s", regex.IGNORECASE)
_TOKEN = regex.compile(r"\w+|[^\w\s]")


class TitleIndex:
    """Titles without their leading article, by their words in order: the first word tells which lengths to look up."""

    def __init__(self, titles: Iterable[str]) -> None:
        self._titles: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for title in titles:
            tokens = _tokens(title_core(title))
            self._titles[tokens].append(title)
            self._lengths[tokens[0] if tokens else ""].add(len(tokens))

    def standing_in(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield each title in `text` with its offsets: whole words in any case, a title's places not overlapping."""
        folded = text.casefold()
        for title in self._candidates(_tokens(text)):
            core = title_core(title)
            if core.casefold() in folded:
                whole = rf"(?<![\w-]){regex.escape(core)}(?![\w-])"
                yield from ((title, *match.span()) for match in regex.finditer(whole, text, regex.IGNORECASE))

    def _candidates(self, tokens: tuple[str, ...]) -> Iterator[str]:
        """Yield, once, the titles whose words stand side by side among `tokens`."""
        runs = (
            tokens[place : place + length]
            for place, first in enumerate(tokens)
            for length in self._lengths.get(first, ())
        )
        for run in dict.fromkeys([(), *runs]):
            yield from self._titles.get(run, ())


def title_core(title: str) -> str:
    """Return a title without its leading article."""
    return _ARTICLE.sub("", title)


def _tokens(text: str) -> tuple[str, ...]:
    """Return words and single marks, equal for texts that differ in case or white space only.

    The four forms of the letter i are one, as they are where case is ignored.
    """
    return tuple(token.casefold().replace("i̇", "i").replace("ı", "i") for token in _TOKEN.findall(text))
