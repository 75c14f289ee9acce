"""Passages that fit: a text too long for one row becomes balanced parts, each with notes of its own.

Every objective then trains each part once at the recipe's ratio; a document cut only at its targets would leave the
prefix of a continuation, or the notes of a rewrite, as long as the whole document's.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from iar.methods.objectives import GRAPHEME, Passage, cut_points, part_name
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.methods.textnorm import grapheme_boundary, sentence_spans, trim
from iar.records import Document

# A part ends with a sentence, or else with a word, that ends this near to the even division, as a share of a part.
REACH = 0.25
# Of the sequence: where title and template leave a part less text than this, nothing is gained by parts.
LEAST_TEXT = 0.125

CountTokens = Callable[[str], int]


def fitting_parts(
    passage: Passage, sequence_length: int, longest_row: Callable[[Passage], int], count_tokens: CountTokens
) -> list[Passage]:
    """Return the passage where its rows fit the sequence, else about the fewest parts of it whose rows all do.

    longest_row: tokens of the longest row of a passage. A passage whose title and template alone leave no room for
    parts is returned as it is: what becomes of its rows is counted where they are tokenised.
    """
    longest, parts = longest_row(passage), [passage]
    if longest <= sequence_length:
        return parts
    sentences = sentence_spans(passage.text, 0, len(passage.text))
    reached = list(accumulate(count_tokens(passage.text[start:end]) for start, end in sentences))
    count = 1
    while longest > sequence_length:
        count = max(count + 1, count * longest // sequence_length)
        if not reached or reached[-1] < count * LEAST_TEXT * sequence_length:
            return [passage]
        parts = divide(passage, sentences, reached, count)
        longest = max(map(longest_row, parts))
    return parts


def divide(passage: Passage, sentences: Sequence[tuple[int, int]], reached: Sequence[int], count: int) -> list[Passage]:
    """Return about `count` parts of about equally many tokens; `reached`: tokens up to the end of each sentence.

    Each non-space character is in one part. A part ends between sentences, else between words, else between graphemes.
    """
    text = passage.text
    cuts = {_cut(text, sentences, reached, reached[-1] / count, number) for number in range(1, count)}
    spans = [trim(text, start, end) for start, end in pairwise(sorted({0, *cuts, len(text)}))]
    spans = [span for span in spans if span[0] < span[1]]
    return [_part(passage, start, end, number, len(spans)) for number, (start, end) in enumerate(spans, 1)]


def _cut(
    text: str, sentences: Sequence[tuple[int, int]], reached: Sequence[int], tokens_a_part: float, number: int
) -> int:
    """Return the offset in the text that is nearest to the even end of part `number`."""
    wanted = number * tokens_a_part
    index = bisect_left(reached, wanted)
    start, end = sentences[index]
    before = reached[index - 1] if index else 0
    reach = REACH * tokens_a_part
    distance, cut = min((wanted - before, start), (reached[index] - wanted, end))
    if distance <= reach:
        return grapheme_boundary(text, cut)
    characters_a_token = (end - start) / (reached[index] - before)
    within = (wanted - before) * characters_a_token
    for points in _points(text[start:end]):
        nearest = min(points, key=lambda point: abs(point - within), default=0)
        if abs(nearest - within) <= reach * characters_a_token:
            break
    return start + nearest


@functools.lru_cache(maxsize=4)
def _points(sentence: str) -> tuple[list[int], list[int]]:
    """Return the offsets between words and between graphemes; remembered, as an endless sentence is cut many times."""
    return cut_points(sentence), [match.end() for match in GRAPHEME.finditer(sentence)][:-1]


def _part(passage: Passage, start: int, end: int, number: int, count: int) -> Passage:
    """Return text[start:end] of a passage as part `number` of `count`; its skeleton is by rule, of this text alone."""
    text, place = passage.text[start:end], passage.start + start
    own = tuple(anchor for anchor in passage.anchors if place <= anchor.start < passage.start + end)
    name, source_id = part_name(number, count), f"{passage.source_id}/{number}"
    notes = make_rewrite_input(Document(source_id, passage.title, text, "", "", ""), own, "skeleton", "").text
    return Passage(source_id, passage.title, name + passage.part, text, (name + notes,), place, own, passage.source)
