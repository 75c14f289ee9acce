"""What a rewrite row shows of a document, made by rules: a skeleton, an outline or a summary, never its full text."""

import re
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, takewhile
from statistics import fmean

from iar.methods.chunking import headings, paragraph_spans
from iar.methods.lexicon import FUNCTION_WORDS
from iar.methods.textnorm import is_heading, sentence_spans, words_of
from iar.records import Anchor, Document, RewriteInput

MAX_SHARE = 0.35
OUTLINE_SHARE = 0.7  # of a skeleton; key terms fill what is left
MAX_CLAUSE_CHARACTERS = 90


def make_rewrite_input(document: Document, anchors: Sequence[Anchor], kind: str, teacher: str) -> RewriteInput:
    """Return the input of this kind: at most 35 % of the document's characters (the title alone may be longer).

    outline: title, headings and one opening clause a paragraph. skeleton: the outline, then key terms in text order.
    summary: the document's own most telling sentences, in text order; rules write none.
    """
    budget = int(MAX_SHARE * len(document.text))
    if kind == "summary":
        return RewriteInput(document.id, kind, _summary(document, budget), teacher)
    lines, length = [document.title], len(document.title)
    for line in _outline(document):
        if length + 1 + len(line) <= budget * (OUTLINE_SHARE if kind == "skeleton" else 1):
            lines.append(line)
            length += 1 + len(line)
    if kind == "skeleton":
        lines += _key_terms(anchors, budget - length)
    return RewriteInput(document.id, kind, "\n".join(lines), teacher)


def _key_terms(anchors: Sequence[Anchor], room: int) -> list[str]:
    """Return a line of the anchors' texts, as many as there is room for; none where there is room for none."""
    terms = list(dict.fromkeys(anchor.text for anchor in sorted(anchors, key=lambda anchor: anchor.start)))
    lengths = accumulate(len("; ") + len(term) for term in terms)
    fitting = sum(1 for _ in takewhile(lambda length: len("\nKey terms: ") - len("; ") + length <= room, lengths))
    return ["Key terms: " + "; ".join(terms[:fitting])] if fitting else []


def _summary(document: Document, budget: int) -> str:
    """Return title and sentences by SumBasic (Nenkova and Vanderwende 2005): the most frequent words first.

    Once a sentence is taken its words count their squared frequency, so that the next one says something else.
    """
    prose = [span for span in paragraph_spans(document) if not is_heading(document.text[slice(*span)])]
    sentences = [
        document.text[slice(*span)] for start, end in prose for span in sentence_spans(document.text, start, end)
    ]
    words = [[word for word in words_of(sentence) if word not in FUNCTION_WORDS] for sentence in sentences]
    counts = Counter(word for own in words for word in own)
    total = counts.total()
    weight = {word: count / total for word, count in counts.items()}
    taken: list[int] = []
    room = budget - len(document.title)
    # Weights and room only shrink. So a sentence whose score still holds when it comes first is the best of all, and a
    # word's weight, squared a few dozen times, is 0 for good: the work grows with the text, not with its square.
    waiting = [(-fmean(weight[word] for word in own), place) for place, own in enumerate(words) if own]
    heapify(waiting)
    while waiting:
        score, best = heappop(waiting)
        if len(sentences[best]) >= room:
            continue
        if (now := -fmean(weight[word] for word in words[best])) > score:
            heappush(waiting, (now, best))
            continue
        for word in set(words[best]):
            weight[word] **= 2
        taken.append(best)
        room -= len(sentences[best]) + 1
    return "\n".join([document.title, *(sentences[place] for place in sorted(taken))])


def _outline(document: Document) -> list[str]:
    """Return the headings and, for each paragraph, the opening clause of its first sentence."""
    titles = set(headings(document))
    lines = []
    for start, end in paragraph_spans(document):
        paragraph = document.text[start:end]
        if paragraph in titles:
            lines.append(paragraph)
        elif not is_heading(paragraph):
            first_start, first_end = sentence_spans(document.text, start, end)[0]
            lines.append(f"- {_opening_clause(document.text[first_start:first_end])}")
    return lines


def _opening_clause(sentence: str) -> str:
    """Return the sentence up to its first clause mark, cut at a word within the length."""
    clause = re.split(r"(?<=\w)[,;:，；：。.!?！？](?=\D|$)", sentence, maxsplit=1)[0]
    if len(clause) <= MAX_CLAUSE_CHARACTERS:
        return clause
    cut = clause[:MAX_CLAUSE_CHARACTERS]
    return (cut.rpartition(" ")[0] or cut) + " …"
