"""The judge panel: a failed vote is no zero, and the order of votes decides nothing."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.panel import needs_third, settle
from iar.records import Vote

SCORES = st.sampled_from([None, 0.0, 0.5, 1.0])


def vote(score: float | None, judge: str = "a", attempt: int = 1, **changes: str) -> Vote:
    """A vote on one reply; None is a failed one."""
    item = changes.get("item", "q1")
    return Vote("m", "domain", item, judge, "1", attempt, score, "", "" if score is not None else "unreadable")


@pytest.mark.parametrize(
    ("first", "second", "third", "score", "note"),
    [
        (1.0, 1.0, None, 1.0, ""),
        (0.0, 1.0, 0.5, 0.5, ""),
        (0.0, 1.0, 1.0, 1.0, ""),
        (0.5, 1.0, None, 0.5, "third vote failed"),
        (0.0, None, 0.0, 0.0, ""),
        (None, 1.0, 0.5, 0.5, "third vote failed"),
        (None, 1.0, None, None, "unscored"),
        (None, None, 1.0, None, "unscored"),
        (None, None, None, None, "unscored"),
    ],
)
def test_settled_scores(
    first: float | None, second: float | None, third: float | None, score: float | None, note: str
) -> None:
    assert settle([vote(first), vote(second)], vote(third)) == (score, note)


def test_the_third_judge_is_called_where_the_first_two_settle_nothing() -> None:
    assert not needs_third([vote(0.5), vote(0.5)])
    assert needs_third([vote(0.5), vote(1.0)])
    assert needs_third([vote(None), vote(1.0)])
    assert needs_third([vote(None), vote(None)])


@settings(deadline=None)
@given(first=SCORES, second=SCORES, third=SCORES)
def test_no_order_of_votes_changes_the_score(first: float | None, second: float | None, third: float | None) -> None:
    results = {settle([vote(a), vote(b)], vote(c)) for a, b, c in permutations((first, second, third))}
    assert len(results) == 1
    score, _ = results.pop()
    assert score in (None, 0.0, 0.5, 1.0)


@settings(deadline=None)
@given(first=SCORES, second=SCORES)
def test_two_equal_votes_need_no_third(first: float | None, second: float | None) -> None:
    votes = [vote(first), vote(second)]
    if not needs_third(votes):
        assert settle(votes, None) == (first, "")
