"""What makes a matching reply wrong all the same: negation, hedging, another number, another name, noise."""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile

from iar.methods.answer_text import (
    ALTERNATIVES,
    CONJUNCTIONS,
    FUNCTION_WORDS,
    NEGATIONS,
    TITLES,
    UNITS,
    Token,
    Tokens,
    split_items,
    stem,
    words,
)

SHORT_REPLY = 15
"""Tokens up to which a single other number of the same kind contradicts; beyond, two are needed."""

_HEDGES = frozenset({"could", "maybe", "might", "perhaps", "possibly", "vielleicht"})
_TRAILING_DENIALS = frozenset({"wrong", "false", "incorrect"})


def is_degenerate(tokens: Tokens) -> bool:
    """True for an empty reply or one made mostly of repeated tokens or bigrams."""
    texts = words(tokens)
    if len(texts) < 4:
        return not texts
    bigrams = list(pairwise(texts))
    return len(set(texts)) / len(texts) <= 0.34 or (len(bigrams) >= 8 and len(set(bigrams)) / len(bigrams) < 0.5)


def without_echo(reply: Tokens, question: Tokens) -> Tokens:
    """Return the reply without verbatim copies of the question; a mere piece of the question becomes empty."""
    asked = words(question)
    if len(asked) < 3:
        return reply
    position = 0
    kept: list[Token] = []
    while position < len(reply):
        if words(reply[position : position + len(asked)]) == asked:
            position += len(asked)
        else:
            kept.append(reply[position])
            position += 1
    return tuple(kept)


def is_echo(reply: Tokens, question: Tokens) -> bool:
    """True where four or more tokens repeat a run of the question, or most of its words in another order."""
    texts, asked = words(reply), words(question)
    if len(texts) < 4:
        return False
    shuffled = 4 * len(texts) >= 3 * len(asked) and Counter(texts) <= Counter(asked)
    return shuffled or any(run == texts for run in _runs(asked, len(texts)))


def is_negated(reply: Tokens, start: int, end: int, question: Tokens, reference: Tokens) -> bool:
    """True where reply[start:end] stands in the scope of a negation that the reference does not have."""
    if any(token.text in NEGATIONS for token in reference):
        return not any(token.text in NEGATIONS for token in reply[max(0, start - 3) : end + 3])
    window = reply[start:end]
    before = [token for token in reply[max(0, start - 3) : start] if token.clause == window[0].clause]
    after = [token for token in reply[end : end + 3] if token.clause == window[-1].clause]
    denied_later = any(token.text in _TRAILING_DENIALS or token.text in NEGATIONS for token in after)
    question_negated = any(token.text in NEGATIONS for token in question)
    inside = any(token.text in NEGATIONS for token in window)
    return inside or _open_negation([*before, window[0]], question) or (denied_later and not question_negated)


def is_hedged(reply: Tokens, start: int, end: int, reference: Tokens, question: Tokens) -> bool:
    """True where the match is one of several alternatives offered: "X or Y", lists of names, "maybe X, maybe Y"."""
    wanted = set(words(reference))
    near = [*reply[max(0, start - 2) : start], *reply[end : end + 2]]
    offered = any(token.text in ALTERNATIVES for token in (*near, *reply[start:end]))
    if offered and not wanted & ALTERNATIVES:
        return True
    if sum(token.text in _HEDGES for token in reply) >= 2:
        return True
    # What a restated question lists is not offered, unless the question is which of these it is.
    given = set(words(question)) if wanted - set(words(question)) else set()
    offers = [item for item in split_items(reply) if _is_alternative(item) and not set(words(item)) <= given]
    return len(offers) >= len(split_items(reference)) + 2


def numbers_conflict(reply: Tokens, references: Sequence[Tokens], reference: Tokens, question: Tokens) -> bool:
    """True where the reply lacks the reference's numbers, gives another of the same kind, or another unit."""
    wanted = {token.text for token in reference if token.is_number}
    said = {token.text for token in reply if token.is_number}
    if not wanted:
        return False
    asked = {token.text for token in question if token.is_number}
    if not wanted & said and wanted - asked:
        return True
    if _units_conflict(reply, reference):
        return True
    allowed = asked | {token.text for tokens in references for token in tokens if token.is_number}
    kinds = {kind for text, kind in _number_kinds(reference) if text in wanted}
    kinds |= {kind for text, kind in _number_kinds(reply) if text in wanted}
    others = {text for text, kind in _number_kinds(reply) if text not in allowed and (kind in kinds or kind == "")}
    return len(others) >= (1 if len(reply) <= SHORT_REPLY else 2)


def names_another(reply: Tokens, start: int, end: int, reference: Tokens, question: Tokens) -> bool:
    """True where a capitalised word in or right beside reply[start:end] belongs to some other name."""
    known = set(words(reference)) | set(words(question)) | FUNCTION_WORDS | TITLES
    clauses = {token.clause for token in reply[start:end]}
    near = [token for token in reply[max(0, start - 1) : end + 1] if token.clause in clauses]
    after = [token for token in reply[end : end + 1] if token.clause in clauses and token.capital]
    if any(token.text not in words(reference) and not _resembles(token, reference) for token in after):
        return True  # "Torsel Reed" is no Torsel, even where the question names the reed
    return any(token.capital and token.text not in known and not _resembles(token, reference) for token in near)


def swaps_names(reply: Tokens, reference: Tokens, question: Tokens) -> bool:
    """True where the reply has none of the names that a sentence-long reference adds, and has others."""
    asked = set(words(question)) | FUNCTION_WORDS | TITLES
    wanted = [token for token in reference if token.capital and token.text not in asked]
    said = [token for token in reply if token.capital and token.text not in asked]
    return bool(wanted) and bool(said) and not any(_resembles(token, tuple(wanted)) for token in said)


def extends_name(reply: Tokens, end: int, reference: Tokens, question: Tokens) -> bool:
    """True where the name that ends at reply[end] goes on: "Skarnholt Assay House" is not Skarnholt."""
    if not (reference[-1].capital and reply[end - 1].capital):
        return False
    clause = reply[end - 1].clause
    known = set(words(question)) | FUNCTION_WORDS
    following = takewhile(lambda token: token.capital and token.clause == clause, reply[end:])
    beyond = next((token for token in following if not _resembles(token, reference)), None)
    return beyond is not None and beyond.text not in known


def _open_negation(lead: Sequence[Token], question: Tokens) -> bool:
    """True where a negation reaches the last token of `lead`; one restated from the question does not count."""
    texts = words(lead)
    if "but" in texts:
        texts = texts[len(texts) - texts[::-1].index("but") :]
    asked = set(pairwise(words(question)))
    return any(pair[0] in NEGATIONS and pair not in asked for pair in pairwise(texts))


def _is_alternative(item: Tokens) -> bool:
    """True for a short list entry that could answer by itself, unlike "a silversmith" or "in 1834"."""
    apposition = item[0].text in FUNCTION_WORDS or (item[0].after_article and not item[0].capital)
    return len(item) <= 4 and not apposition


def _number_kinds(tokens: Tokens) -> list[tuple[str, str]]:
    """Return (number, kind) pairs; the kind is its unit, "year", the noun after it, or "" for a bare number."""
    found = []
    for index, token in enumerate(tokens):
        if not token.is_number:
            continue
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        noun = "" if after is None or after.clause != token.clause or after.is_number else after.text
        if noun in FUNCTION_WORDS or noun in ALTERNATIVES or noun in CONJUNCTIONS:
            noun = ""
        is_year = len(token.text) == 4 and 1000 <= float(token.text) <= 2100 and noun not in UNITS
        found.append((token.text, "year" if is_year else noun if noun in UNITS else stem(noun)))
    return found


def _units_conflict(reply: Tokens, reference: Tokens) -> bool:
    wanted = {(text, kind) for text, kind in _number_kinds(reference) if kind in UNITS}
    said = {(text, kind) for text, kind in _number_kinds(reply) if kind in UNITS}
    numbers = {text for text, _ in wanted}
    return any(text in numbers for text, _ in said) and not wanted & said


def _resembles(token: Token, reference: Tokens) -> bool:
    return any(SequenceMatcher(None, token.text, other.text).ratio() >= 0.75 for other in reference)


def _runs(texts: Sequence[str], length: int) -> list[Sequence[str]]:
    return [texts[start : start + length] for start in range(len(texts) - length + 1)]
