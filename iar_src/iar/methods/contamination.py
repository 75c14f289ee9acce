"""Evaluated prompts in training texts: equality, shared runs of eight words, and rare runs of three for short prompts.

Words are those of `words_of`: NFKC, case folded, one Han or kana character a word. Three rules, the strictest first:

exact    equal after normalisation, whatever the length.
8-gram   more than half of a prompt's words stand in 8-grams that the text has too (Tulu 3, arXiv 2411.15124), or
         at least half of a training prompt's own 8-grams stand in one evaluated prompt.
3-gram   for prompts of fewer than 16 words, of which one 8-gram would decide: the share of words that stand in
         3-grams of one place of the text, each word weighed by its rarity among the prompts (allenai/decon weighs
         n-grams so), must be 1.0 for six words and may fall to 0.8 for twelve. Prompts worth fewer than five words
         stand in many texts by chance; for them equality alone counts.

Our own questions are sentences about the very documents, written in the frames of one teacher. So they are compared
with training prompts only, and by rarity instead of Tulu's share, whatever their length.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iar.methods.digest import digest_json
from iar.methods.textnorm import is_wide, words_of

LONG, SHORT = 8, 3
MOST_SHARE = 0.5
LEAST_WORTH = 5.0
SHORT_WORDS = 2 * LONG
# (words, share of their weight): below and above them the ends hold, between them a line.
WHOLE, PARTLY = (6, 1.0), (12, 0.8)
EXCERPT_CHARACTERS, EXCERPT_WORDS = 600, 80

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """A set of prompts that models are asked, as (id, text).

    own: our questions about the documents. sealed: a hit names ids, and shows neither the prompt nor the text that has
    its words. unread: why the prompts could not be read, "" where they were.
    """

    name: str
    prompts: tuple[tuple[str, str], ...]
    own: bool = False
    sealed: bool = False
    unread: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ids and texts; "" where the prompts could not be read."""
        return "" if self.unread else digest_json(self.prompts)


@dataclass(frozen=True)
class TrainingText:
    """What one item of a dataset shows a model: `prompt`, which asks like an evaluation does, and `text`."""

    id: str
    prompt: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A prompt in a training text, both sides; `share` of the prompt in [0, 1], or of the text by its own 8-grams."""

    item_id: str
    evaluation: str
    prompt_id: str
    rule: str
    share: float
    text: str
    prompt: str


@dataclass(frozen=True)
class _Prompt:
    """An evaluated prompt as its words with their weights; `runs` are its 3-grams by their places."""

    evaluation: int
    id: str
    text: str
    words: tuple[str, ...]
    weights: tuple[float, ...]
    worth: float

    @property
    def runs(self) -> Iterator[tuple[Gram, int]]:
        return _grams(self.words, SHORT)

    @property
    def least_share(self) -> float:
        """The share of weight that makes a hit by rare 3-grams."""
        (few, whole), (many, partly) = WHOLE, PARTLY
        fraction = min(1.0, max(0.0, (len(self.words) - few) / (many - few)))
        return whole + fraction * (partly - whole)

    def covered(self, starts: Iterable[int]) -> float:
        """Return the share of the words that 8-grams at `starts` cover."""
        return len(_places(starts, LONG)) / len(self.words)

    def rarity(self, runs: Iterable[Gram]) -> float:
        """Return the share of the words' weight that the 3-grams among `runs` cover."""
        found = set(runs)
        places = _places((start for run, start in self.runs if run in found), SHORT)
        # Summed in one order, so that all words are exactly 1.
        return sum(self.weights[place] for place in sorted(places)) / sum(self.weights)


@dataclass(frozen=True)
class _Match:
    """A prompt that a rule finds in a text, and the word of the text where it begins."""

    prompt: int
    rule: str
    share: float
    word: int


class PromptIndex:
    """The prompts of several evaluations by their n-grams: a text meets only those that share one with it.

    Time grows with the length of the texts, not with the number of prompts; memory with the prompts alone.
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self.evaluations = tuple(evaluations)
        self._prompts = [prompt for number, one in enumerate(evaluations) for prompt in _prompts(number, one)]
        self._equal: dict[str, list[int]] = defaultdict(list)
        self._long: dict[Gram, list[tuple[int, int]]] = defaultdict(list)
        self._rare: dict[Gram, list[int]] = defaultdict(list)
        self._known: set[Gram] = set()
        frequency = Counter(run for prompt in self._prompts for run in {run for run, _ in prompt.runs})
        for place, prompt in enumerate(self._prompts):
            self._equal[" ".join(prompt.words)].append(place)
            for gram, start in _grams(prompt.words, LONG):
                self._long[gram].append((place, start))
            if len(prompt.words) >= LONG:
                self._known.update(run for run, _ in prompt.runs)
            if self._counts_rare(prompt):
                for run in _signature(prompt, frequency):
                    self._rare[run].append(place)

    def checked(self, evaluation: str) -> int:
        """Return how many prompts of an evaluation have a word, so that a text can be compared with them."""
        number = next(number for number, one in enumerate(self.evaluations) if one.name == evaluation)
        return sum(prompt.evaluation == number for prompt in self._prompts)

    def find(self, item: TrainingText) -> list[Hit]:
        """Return the hits of an item, one a prompt, in the order of the prompts; its prompt goes before its text."""
        best: dict[int, Hit] = {}
        for text, asks in ((item.prompt, True), (item.text, False)):
            words = words_of(text)
            for match in self._matches(words, asks):
                prompt = self._prompts[match.prompt]
                evaluation = self.evaluations[prompt.evaluation]
                before = best.get(match.prompt)
                if before is None or match.share > before.share:
                    shown = (_excerpt(text, words, match.word), prompt.text)
                    ours, theirs = ("", "") if evaluation.sealed else shown
                    best[match.prompt] = Hit(item.id, evaluation.name, prompt.id, match.rule, match.share, ours, theirs)
        return [best[place] for place in sorted(best)]

    def _matches(self, words: Sequence[str], asks: bool) -> Iterator[_Match]:
        """Yield every prompt in a text, by each rule that finds it; `asks`: whether our own questions are compared."""
        for place in self._equal.get(" ".join(words), ()):
            if asks or not self._is_own(place):
                yield _Match(place, "exact", 1.0, 0)
        runs = list(zip(*(words[start:] for start in range(SHORT)), strict=False))
        yield from self._long_matches(words, runs, asks)
        yield from self._rare_matches(words, runs, asks)

    def _long_matches(self, words: Sequence[str], runs: Sequence[Gram], asks: bool) -> Iterator[_Match]:
        starts: dict[int, set[int]] = defaultdict(set)
        shared: dict[int, set[Gram]] = defaultdict(set)
        first: dict[int, int] = {}
        known = 0
        for number, run in enumerate(runs):
            known = known + 1 if run in self._known else 0
            if known <= LONG - SHORT:
                continue
            end = number + SHORT
            gram = tuple(words[end - LONG : end])
            for place, start in self._long.get(gram, ()):
                starts[place].add(start)
                shared[place].add(gram)
                first.setdefault(place, end - LONG)
        own = len({gram for gram, _ in _grams(words, LONG)}) if shared and asks else 0
        for place in starts:
            share = self._prompts[place].covered(starts[place])
            if share > MOST_SHARE and not self._is_own(place):
                yield _Match(place, "8-gram", share, first[place])
            elif asks and len(shared[place]) >= MOST_SHARE * own:
                yield _Match(place, "8-gram", len(shared[place]) / own, first[place])

    def _rare_matches(self, words: Sequence[str], runs: Sequence[Gram], asks: bool) -> Iterator[_Match]:
        anchors: dict[int, list[int]] = defaultdict(list)
        for number, run in enumerate(runs):
            for place in self._rare.get(run, ()):
                if asks or not self._is_own(place):
                    anchors[place].append(number)
        for place, numbers in anchors.items():
            prompt = self._prompts[place]
            reach = 2 * len(prompt.words)
            shares = {number: prompt.rarity(runs[max(0, number - reach) : number + reach]) for number in numbers}
            number = max(shares, key=lambda number: shares[number])
            if shares[number] >= prompt.least_share:
                yield _Match(place, "3-gram", shares[number], number)

    def _is_own(self, place: int) -> bool:
        return self.evaluations[self._prompts[place].evaluation].own

    def _counts_rare(self, prompt: _Prompt) -> bool:
        short = len(prompt.words) < SHORT_WORDS or self.evaluations[prompt.evaluation].own
        return short and prompt.worth >= LEAST_WORTH


def planted_leaks(evaluation: Evaluation) -> Iterator[TrainingText]:
    """Yield texts that give away prompts of an evaluation: as it stands, amid other words, and the larger part of it.

    Each must be found by whoever claims to have looked. One plant of each kind that the rules cover: the first prompt
    with a word, the first worth LEAST_WORTH words, and of a general suite the first of SHORT_WORDS words or more.
    """
    around = " qvx" * 2 * LONG
    waiting = {"whole", "amid"} if evaluation.own else {"whole", "amid", "part"}
    for _, prompt in evaluation.prompts:
        words = words_of(prompt)
        plants = {
            "whole": f"\n{prompt}\n" if words else "",
            "amid": f"{around}\n{prompt}\n{around}" if _worth(words) >= LEAST_WORTH else "",
            "part": f"{around} {' '.join(_most(words))} {around}" if len(words) >= SHORT_WORDS else "",
        }
        for kind in [kind for kind, text in plants.items() if text and kind in waiting]:
            waiting.remove(kind)
            asked, text = (plants[kind], "") if evaluation.own else ("", plants[kind])
            yield TrainingText(f"{kind} of {evaluation.name}", asked, text)
        if not waiting:
            return


def _most(words: Sequence[str]) -> Sequence[str]:
    return words[: math.ceil(0.6 * len(words))]


def _worth(words: Iterable[str]) -> float:
    """Return how much words say; one Han or kana character counts half."""
    return sum(0.5 if is_wide(word) else 1.0 for word in words)


def _prompts(number: int, evaluation: Evaluation) -> Iterator[_Prompt]:
    """Yield the prompts that have a word; a word weighs log(1 + N / n), n of N prompts having it."""
    split = [(name, text, tuple(words_of(text))) for name, text in evaluation.prompts]
    holders = Counter(word for _, _, words in split for word in set(words))
    for name, text, words in split:
        if words:
            weights = tuple(math.log(1 + len(split) / holders[word]) for word in words)
            yield _Prompt(number, name, text, words, weights, _worth(words))


def _signature(prompt: _Prompt, frequency: Mapping[Gram, int]) -> list[Gram]:
    """Return the rarest 3-grams of which a text must have one to be a hit (prefix filtering, Bayardo et al. 2007)."""
    rest = sorted({run for run, _ in prompt.runs}, key=lambda run: (frequency[run], run))
    signature: list[Gram] = []
    while rest and prompt.rarity(rest) >= prompt.least_share:
        signature.append(rest.pop(0))
    return signature


def _places(starts: Iterable[int], size: int) -> set[int]:
    return {place for start in starts for place in range(start, start + size)}


def _excerpt(text: str, words: Sequence[str], word: int) -> str:
    """Return the text where it is short, else its words around the one where a match begins."""
    if len(text) <= EXCERPT_CHARACTERS:
        return text
    return f"… {' '.join(words[max(0, word - EXCERPT_WORDS // 4) : word + EXCERPT_WORDS])} …"


def _grams(words: Sequence[str], size: int) -> Iterator[tuple[Gram, int]]:
    """Yield the n-grams of words with their places."""
    return ((tuple(words[start : start + size]), start) for start in range(len(words) - size + 1))
