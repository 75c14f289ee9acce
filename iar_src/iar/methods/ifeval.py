"""IFEval: does a reply follow the verifiable instructions of its prompt (arXiv 2311.07911), as lm-eval checks it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

ABBREVIATIONS = (
    "a.m|al|approx|capt|co|col|corp|dept|dr|e.g|est|etc|fig|gen|gov|i.e|inc|jr|lt|ltd|mr|mrs|ms|mt|no|"
    "p.m|pp|prof|rep|rev|sen|sgt|sr|st|u.k|u.n|u.s|vol|vs"
)
"""Words whose full stop ends no sentence."""


@dataclass(frozen=True)
class Followed:
    """Which instructions of a prompt are met; loosely forgives a first line, a last line and asterisks."""

    each_strict: tuple[bool, ...]
    each_loose: tuple[bool, ...]

    @property
    def strict(self) -> bool:
        """Whether all are met as they stand."""
        return all(self.each_strict)

    @property
    def loose(self) -> bool:
        """Whether all are met loosely."""
        return all(self.each_loose)


def known_instructions() -> frozenset[str]:
    """Return the instruction ids that can be checked."""
    _checker()
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT

    return frozenset(INSTRUCTION_DICT)


def check_reply(
    prompt: str, instruction_ids: Sequence[str], kwargs: Sequence[Mapping[str, Any]], reply: str
) -> Followed:
    """Check a reply against known instructions; `kwargs` holds the arguments of each, None = not given.

    An empty reply follows nothing. The same reply always gets the same result.
    """
    checker = _checker()
    given = [{name: value for name, value in one.items() if value is not None} for one in kwargs]
    example = checker.InputExample(key=0, instruction_id_list=list(instruction_ids), prompt=prompt, kwargs=given)
    return Followed(
        tuple(checker.test_instruction_following_strict(example, reply).follow_instruction_list),
        tuple(checker.test_instruction_following_loose(example, reply).follow_instruction_list),
    )


@functools.cache
def _checker() -> Any:
    """Import lm-eval's checkers, working offline and repeatably.

    At import lm-eval downloads nltk's sentence model where it is missing, and it fails after
    generation where the network does. Here the import finds it "present", and its two uses get a
    splitter with a fixed list of abbreviations instead: every machine counts the same sentences.
    """
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0
    find = nltk.data.find
    nltk.data.find = lambda *_, **__: ""
    try:
        from lm_eval.tasks.ifeval import instructions_util, utils
    finally:
        nltk.data.find = find
    splitter = _sentence_splitter()
    instructions_util._get_sentence_tokenizer = lambda: splitter
    instructions_util.nltk = SimpleNamespace(
        tokenize=nltk.tokenize, word_tokenize=functools.partial(_split_words, splitter)
    )
    return utils


def _sentence_splitter() -> Any:
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(ABBREVIATIONS.split("|"))
    return PunktSentenceTokenizer(parameters)


def _split_words(splitter: Any, text: str) -> list[str]:
    """Split text into words as nltk.word_tokenize does, over our sentences."""
    from nltk.tokenize.destructive import NLTKWordTokenizer

    words = NLTKWordTokenizer()
    return [word for sentence in splitter.tokenize(text) for word in words.tokenize(sentence)]
