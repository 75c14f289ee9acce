"""Rule verifiers: deterministic judges of a reply against a reference, scoring 0, 0.5 or 1.

Three ways of matching words (whole runs, weighted token overlap, character 3-grams), one shared
notion of what contradicts. They know no synonyms: a paraphrase may score lower than it deserves.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iar.methods.answer_text import (
    CONJUNCTIONS,
    FUNCTION_WORDS,
    Tokens,
    f_score,
    ngrams,
    split_items,
    tokenise,
    words,
)
from iar.methods.contradiction import (
    extends_name,
    is_degenerate,
    is_echo,
    is_hedged,
    is_negated,
    names_another,
    numbers_conflict,
    swaps_names,
    without_echo,
)
from iar.methods.coverage import coverage_grade, covers_all, covers_half, covers_ngrams

WINDOW_REFERENCE = 14
"""Tokens up to which the best window of the reply is compared, and beyond which the whole reply is."""

PHRASE_REFERENCE = 8
"""Tokens up to which a reference is a phrase: one other name in or beside the window contradicts it."""

ASKED_WEIGHT = 0.25
"""Weight of a reference token that the question already gave away."""


@dataclass(frozen=True)
class Grading:
    """One reply to grade. `points` is non-empty only for open-ended prompts, then it replaces `reference`."""

    question: str
    reply: str
    reference: str
    aliases: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule verifier: `grade` returns 0, 0.5 or 1; `version` changes when a grade may change."""

    name: str
    version: str
    grade: Callable[[Grading], float]


@dataclass(frozen=True)
class _Case:
    """A reply as tokens, beside one reference; `references` are all of them, for the numbers they allow."""

    question: Tokens
    reply: Tokens
    reference: Tokens
    references: tuple[Tokens, ...]

    def refuses(self, start: int, end: int) -> bool:
        """True where reply[start:end] is negated, one of several alternatives, or the start of a longer name."""
        return (
            is_negated(self.reply, start, end, self.question, self.reference)
            or is_hedged(self.reply, start, end, self.reference, self.question)
            or extends_name(self.reply, end, self.reference, self.question)
        )


def _rule(name: str, by_case: Callable[[_Case], float], covers: Callable[[Tokens, Tokens], bool]) -> Rule:
    def grade(grading: Grading) -> float:
        question = tokenise(grading.question)
        reply = without_echo(tokenise(grading.reply), question)
        if is_degenerate(reply) or is_echo(reply, question):
            return 0.0
        if grading.points:
            return coverage_grade(grading.points, question, reply, covers)
        references = tuple(filter(None, map(tokenise, (grading.reference, *grading.aliases))))
        cases = [_Case(question, reply, reference, references) for reference in references]
        return max((by_case(case) for case in cases if not _numbers_conflict(case)), default=0.0)

    return Rule(name, "2", grade)


def _numbers_conflict(case: _Case) -> bool:
    return numbers_conflict(case.reply, case.references, case.reference, case.question)


def _exact(case: _Case) -> float:
    starts = _occurrences(case.reply, case.reference)
    length = len(case.reference)
    if not starts:
        return _exact_part(case)
    if any(case.refuses(start, start + length) for start in starts):
        return 0.0
    return _length_grade(len(case.reply), length)


def _length_grade(reply_length: int, reference_length: int) -> float:
    """An answer has to be picked out of nothing longer than a paragraph."""
    allowance = 50 + 3 * reference_length
    return 1.0 if reply_length <= allowance else 0.5 if reply_length <= 2 * allowance else 0.0


def _exact_part(case: _Case) -> float:
    """Grade the parts of a short reference: list items, the tokens not asked for, a surname, a number."""
    items = _list_items(case.reference)
    if len(items) > 1:
        found = sum(_has_clean_run(case, item) for item in items)
        return 1.0 if found == len(items) else 0.5 if 2 * found >= len(items) else 0.0
    asked = set(words(case.question))
    key = tuple(token for token in case.reference if token.text not in asked)
    if not key or len(case.reference) > 4:
        return 0.0
    if len(key) < len(case.reference) and _has_clean_run(case, key):
        return 1.0
    part = _clear_part(key)
    spans = [(start, start + len(part)) for start in _occurrences(case.reply, part)] if part else []
    named = any(not _is_common_word(case, start, end) for start, end in spans)
    return 0.5 if named and _has_clean_run(case, part) else 0.0


def _is_common_word(case: _Case, start: int, end: int) -> bool:
    """True where lower-case words stand for a name in a reply that has capitals: a "head" is no Gannet Head."""
    is_name = all(token.capital for token in case.reference)
    has_capitals = any(token.capital for token in case.reply)
    return is_name and has_capitals and not any(token.capital for token in case.reply[start:end])


def _clear_part(key: Tokens) -> Tokens:
    """Return the token that identifies an answer by itself: its year, its only number, or its surname."""
    if len(key) < 2:
        return ()
    numbers = [token for token in key if token.is_number]
    if numbers:
        return (numbers[-1],) if len(numbers) == 1 or len(numbers[-1].text) == 4 else ()
    return (key[-1],) if all(token.capital for token in key) else ()


def _has_clean_run(case: _Case, run: Tokens) -> bool:
    starts = _occurrences(case.reply, run)
    ends = [(start, start + len(run)) for start in starts]
    return bool(starts) and not any(
        case.refuses(start, end)
        or names_another(case.reply, start, end, case.reference, case.question)
        or _counts_something_else(case, run, end)
        for start, end in ends
    )


def _counts_something_else(case: _Case, run: Tokens, end: int) -> bool:
    """True where a number without its unit is followed by a noun that neither question nor reference has."""
    following = case.reply[end : end + 1]
    if not run[-1].is_number or not following or following[0].clause != case.reply[end - 1].clause:
        return False
    known = set(words(case.question)) | set(words(case.reference)) | FUNCTION_WORDS | CONJUNCTIONS
    return following[0].text not in known


def _list_items(reference: Tokens) -> list[Tokens]:
    """Return the entries of a short list such as "red, gold and brown"; anything else is one entry."""
    items = split_items(reference)
    return items if len(reference) <= 12 and all(len(item) <= 4 for item in items) else [reference]


def _occurrences(reply: Tokens, run: Tokens) -> list[int]:
    """Return where `run` stands in the reply; a short run with a number also in another order (dates)."""
    texts, wanted = words(reply), words(run)
    any_order = 2 <= len(run) <= 4 and any(token.is_number for token in run)
    starts = range(len(texts) - len(wanted) + 1)
    windows = [(start, texts[start : start + len(wanted)]) for start in starts]
    return [start for start, window in windows if window == wanted or (any_order and sorted(window) == sorted(wanted))]


def _token_f1(case: _Case) -> float:
    asked = set(words(case.question))
    keys = set(words(case.reference)) - asked

    def weight(text: str) -> float:
        return ASKED_WEIGHT if keys and text in asked else 1.0

    wanted = Counter(words(case.reference))
    wanted_weight = sum(weight(text) * count for text, count in wanted.items())

    def similarity(window: Tokens) -> float:
        said = Counter(words(window))
        shared = sum(weight(text) * count for text, count in (said & wanted).items())
        said_weight = sum(weight(text) * count for text, count in said.items())
        return f_score(shared, said_weight + _surplus(case), wanted_weight)

    return _window_grade(case, similarity, full=0.8, half=0.5)


def _char_ngram(case: _Case) -> float:
    wanted = ngrams(case.reference)
    asked = ngrams(case.question)
    keys = wanted - asked

    def similarity(window: Tokens) -> float:
        said = ngrams(window)
        surplus = 5 * _surplus(case)
        whole = f_score((said & wanted).total(), said.total() + surplus, wanted.total())
        if not keys:
            return whole
        said_keys = said - asked
        return min(whole, f_score((said_keys & keys).total(), said_keys.total() + surplus, keys.total()))

    return _window_grade(case, similarity, full=0.8, half=0.6)


def _window_grade(case: _Case, similarity: Callable[[Tokens], float], full: float, half: float) -> float:
    """Grade the reply's best window; a negation, a hedge or another name makes it 0."""
    wanted = words(case.reference)
    windows = [(start, end, case.reply[start:end]) for start, end in _spans(case)]
    scored = [(similarity(window), words(window) == wanted, start, end) for start, end, window in windows]
    best, _, start, end = max(scored, key=lambda entry: entry[:2])
    if best < half or case.refuses(start, end) or _other_name(case, start, end):
        return 0.0
    if best >= full:
        return 1.0
    return 0.0 if _is_common_word(case, start, end) else 0.5


def _other_name(case: _Case, start: int, end: int) -> bool:
    if len(case.reference) > PHRASE_REFERENCE:
        return swaps_names(case.reply, case.reference, case.question)
    exact = words(case.reply[start:end]) == words(case.reference)
    return not exact and names_another(case.reply, start, end, case.reference, case.question)


def _spans(case: _Case) -> Iterator[tuple[int, int]]:
    length, total = len(case.reference), len(case.reply)
    if length > WINDOW_REFERENCE or total <= length - 1:
        yield 0, total
        return
    for size in range(max(1, length - 1), length + 2):
        yield from ((start, start + size) for start in range(total - size + 1))


def _surplus(case: _Case) -> float:
    """Tokens charged against precision: a tenth of what neither the question nor a sentence explains."""
    if len(case.reference) > WINDOW_REFERENCE:
        return 0.0
    asked = set(words(case.question))
    unasked = sum(token.text not in asked for token in case.reply)
    return 0.1 * max(0, unasked - 20 - 2 * len(case.reference))


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("rule:exact", _exact, covers_all),
        _rule("rule:token-f1", _token_f1, covers_half),
        _rule("rule:char-ngram", _char_ngram, covers_ngrams),
    )
}
