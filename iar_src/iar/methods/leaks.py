"""General examples that give away a prompt the models are evaluated on, found by shared runs of words."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from iar.methods.textnorm import is_wide, word_ngrams, words_of
from iar.records import Example, Reject

OVERLAP_SHARE = 0.5
LEAST_WORDS = 5  # a shorter prompt stands in many texts by chance


def without_leaks(examples: Iterable[Example], evaluated: Iterable[str]) -> tuple[list[Example], list[Reject]]:
    """Drop the examples that give away a prompt the models are evaluated on; each reject names that prompt.

    A leak is a prompt that equals an evaluated one after normalisation, stands in it or has it in itself as a whole,
    or shares with it at least half of the word 8-grams of the one that has fewer.
    """
    prompts = PromptIndex(evaluated)
    kept: list[Example] = []
    rejects: list[Reject] = []
    for example in examples:
        twin = prompts.twin(example.prompt)
        if twin is None:
            kept.append(example)
        else:
            rejects.append(Reject("replay", example.id, "gives away an evaluated prompt", example.prompt, twin))
    return kept, rejects


class PromptIndex:
    """Prompts by their runs of words: a text is compared only with those that share one with it."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._prompts = list(prompts)
        self._words = [words_of(prompt) for prompt in self._prompts]
        self._equal: dict[str, int] = {}
        self._starts: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._runs: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._ngrams: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        for place, words in enumerate(self._words):
            self._equal.setdefault(" ".join(words), place)
            if _is_long(words):
                self._starts[tuple(words[:LEAST_WORDS])].append(place)
            for run in set(_runs(words)):
                self._runs[run].append(place)
            ngrams = word_ngrams(self._prompts[place])
            self._sizes.append(len(ngrams))
            for ngram in ngrams:
                self._ngrams[ngram].append(place)

    def twin(self, text: str) -> str | None:
        """Return the first prompt that `text` gives away, None where there is none."""
        places = set(self._twins(text))
        return self._prompts[min(places)] if places else None

    def _twins(self, text: str) -> Iterator[int]:
        words = words_of(text)
        if (equal := self._equal.get(" ".join(words))) is not None:
            yield equal
        if _is_long(words):
            around = self._runs.get(tuple(words[:LEAST_WORDS]), ())
            yield from (place for place in around if _stands_in(words, self._words[place]))
        within = {place for run in _runs(words) for place in self._starts.get(run, ())}
        yield from (place for place in within if _stands_in(self._words[place], words))
        ngrams = word_ngrams(text)
        shared = Counter(place for ngram in ngrams for place in self._ngrams.get(ngram, ()))
        for place, count in shared.items():
            if count >= OVERLAP_SHARE * min(len(ngrams), self._sizes[place]):
                yield place


def _is_long(words: Sequence[str]) -> bool:
    """Tell whether words say enough to be no chance; one Han or kana character counts half."""
    return sum(0.5 if is_wide(word) else 1 for word in words) >= LEAST_WORDS


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(LEAST_WORDS)), strict=False)


def _stands_in(words: Sequence[str], others: Sequence[str]) -> bool:
    return f" {' '.join(words)} " in f" {' '.join(others)} "
