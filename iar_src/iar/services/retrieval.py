"""The passages that a search by words finds for a question (BM25), for the open-book reference."""

import importlib.util
from collections.abc import Sequence

from iar.errors import UserError
from iar.methods.textnorm import words_of


def require_search() -> None:
    """Raise UserError where the package that searches is missing; nothing is loaded."""
    if importlib.util.find_spec("bm25s") is None:
        raise UserError("diagnose.enabled: the package bm25s is missing; pip install 'bm25s>=0.3.16,<0.4'")


def find_passages(passages: Sequence[str], questions: Sequence[str], count: int) -> list[list[str]]:
    """Return the `count` best passages of each question, best first; fewer where there are fewer.

    BM25 in Lucene's form (k1 1.5, b 0.75) over words, a Han or kana character a word. Raises UserError where the
    package bm25s is missing.
    """
    require_search()
    import bm25s

    if not passages or not questions:
        return [[] for _ in questions]
    index = bm25s.BM25()
    index.index([words_of(text) for text in passages], show_progress=False)
    asked = [words_of(question) for question in questions]
    found = index.retrieve(asked, k=min(count, len(passages)), show_progress=False, return_as="documents")
    return [[passages[int(number)] for number in row] for row in found]
