"""Knowledge skeletons: title, headings, first clauses and key terms of a document, never its full text."""

import re
from collections.abc import Sequence

from iar.methods.chunking import headings, paragraph_spans
from iar.methods.textnorm import is_heading, sentence_spans
from iar.records import Anchor, Document, Skeleton

MAX_SHARE = 0.35
MAX_CLAUSE_CHARACTERS = 90


def make_skeleton(document: Document, anchors: Sequence[Anchor], teacher: str) -> Skeleton:
    """Return the skeleton: at most 35 % of the document's characters (the title alone may be longer).

    Headings and one opening clause a paragraph come first; key terms, in text order, fill what is left.
    """
    budget = int(MAX_SHARE * len(document.text))
    lines = [document.title]
    for line in _outline(document):
        if len("\n".join([*lines, line])) <= budget * 0.7:
            lines.append(line)
    terms = ""
    for term in dict.fromkeys(anchor.text for anchor in sorted(anchors, key=lambda anchor: anchor.start)):
        longer = f"{terms}; {term}" if terms else f"Key terms: {term}"
        if len("\n".join([*lines, longer])) > budget:
            break
        terms = longer
    return Skeleton(document.id, "\n".join([*lines, terms] if terms else lines), teacher)


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
