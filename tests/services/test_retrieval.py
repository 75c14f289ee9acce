"""Passages are found by the words of a question, in any script."""

import pytest

from iar.services.retrieval import find_passages

pytest.importorskip("bm25s")

PASSAGES = ["The harbour of Velm opened in 1911.", "A green lamp burns in the tower.", "绿灯在塔里亮着。", "Gulls cry."]


@pytest.mark.parametrize(
    ("question", "best"), [("Which lamp burns?", 1), ("WHEN did Velm open in 1911?", 0), ("绿灯？", 2)]
)
def test_the_passage_with_the_words_comes_first(question: str, best: int) -> None:
    (found,) = find_passages(PASSAGES, [question], 2)
    assert found[0] == PASSAGES[best] and len(found) == 2


def test_no_more_than_there_are_and_none_of_nothing() -> None:
    assert len(find_passages(PASSAGES[:2], ["lamp"], 9)[0]) == 2
    assert find_passages([], ["lamp"], 3) == [[]] and find_passages(PASSAGES, [], 3) == []


def test_a_question_without_any_known_word_is_answered_too() -> None:
    assert len(find_passages(PASSAGES, ["zzz", ""], 2)) == 2
