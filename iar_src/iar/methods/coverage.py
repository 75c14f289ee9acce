"""Open-ended replies: how many of the reference points one covers, by three ways of matching words."""

from collections.abc import Callable, Sequence

from iar.methods.answer_text import ALTERNATIVES, FUNCTION_WORDS, Token, Tokens, f_score, ngrams, stem, tokenise, words

Covers = Callable[[Tokens, Tokens], bool]
"""Whether a reply (second) covers the content words of a point (first)."""

LONGEST_POINTS_REPLY = 150
"""Tokens beyond which an open-ended reply loses coverage in proportion; the suite asks for a few sentences."""


def coverage_grade(points: Sequence[str], question: Tokens, reply: Tokens, covers: Covers) -> float:
    """Return 1 from 60 % of the points covered, 0.5 from 30 %; verbosity beyond the limit counts against it."""
    covered = covered_points(points, question, reply, covers)
    coverage = covered / len(points) * min(1.0, LONGEST_POINTS_REPLY / len(reply))
    return 1.0 if coverage >= 0.6 else 0.5 if coverage >= 0.3 else 0.0


def covered_points(points: Sequence[str], question: Tokens, reply: Tokens, covers: Covers) -> int:
    """Return how many of the points the reply covers."""
    return sum(_covers_point(point, question, reply, covers) for point in points)


def _covers_point(point: str, question: Tokens, reply: Tokens, covers: Covers) -> bool:
    """True where one of the point's alternatives ("cost or time") is covered by words the question lacks."""
    alternatives: list[list[Token]] = [[]]
    for token in tokenise(point):
        if token.text in ALTERNATIVES:
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    asked = {stem(text) for text in words(question)}
    for alternative in alternatives:
        content = [token for token in alternative if token.text not in FUNCTION_WORDS] or alternative
        fresh = tuple(token for token in content if stem(token.text) not in asked)
        if fresh and covers(fresh, reply):
            return True
    return False


def covers_all(content: Tokens, reply: Tokens) -> bool:
    """True where the stem of every content word is in the reply."""
    said = {stem(text) for text in words(reply)}
    return all(stem(text) in said for text in words(content))


def covers_half(content: Tokens, reply: Tokens) -> bool:
    """True where the stems of at least half of the content words are in the reply."""
    said = {stem(text) for text in words(reply)}
    return 2 * sum(stem(text) in said for text in words(content)) >= len(content)


def covers_ngrams(content: Tokens, reply: Tokens) -> bool:
    """True where a window of the reply shares half of its character 3-grams with the content words.

    Words change at their end: one that begins otherwise ("right" beside "light") shares by chance, and so does one that
    stands in every sentence ("was" beside "waste").
    """
    wanted = ngrams(content)
    begins = {token.text[:2] for token in content}
    common = FUNCTION_WORDS - set(words(content))
    reply = tuple(token for token in reply if token.text[:2] in begins and token.text not in common)
    for size in range(len(content), len(content) + 2):
        for start in range(max(1, len(reply) - size + 1)):
            said = ngrams(reply[start : start + size])
            if f_score((said & wanted).total(), said.total(), wanted.total()) >= 0.5:
                return True
    return False
