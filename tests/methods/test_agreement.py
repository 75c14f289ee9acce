"""Agreement of the judges, against numbers worked out by hand and against scikit-learn's definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.agreement import agreement, cohen_kappa
from iar.records import Vote

JUDGES = ("one", "two", "three")


def vote(item: str, judge: str, score: float | None, attempt: int = 1) -> Vote:
    """A vote on reply `item`; None is a failed one."""
    return Vote("m", "domain", item, judge, "1", attempt, score, "", "")


def test_kappa_of_a_known_table() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed .7, by chance .5
    first = [1.0] * 25 + [0.0] * 25
    second = [1.0] * 20 + [0.0] * 5 + [1.0] * 10 + [0.0] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)


def test_kappa_says_nothing_where_chance_agrees_fully() -> None:
    assert cohen_kappa([], []) is None
    assert cohen_kappa([1.0, 1.0], [1.0, 1.0]) is None


def test_kappa_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="the same items, got 1 and 2"):
        cohen_kappa([1.0], [1.0, 0.0])


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30))
def test_a_judge_agrees_with_itself(scores: list[float]) -> None:
    kappa = cohen_kappa(scores, scores)
    assert kappa is None if len(set(scores)) == 1 else kappa == pytest.approx(1.0)


def test_agreement_counts_thirds_failures_and_last_attempts() -> None:
    votes = [
        vote("a", "one", 1.0),
        vote("a", "two", 1.0),
        vote("b", "one", 0.0),
        vote("b", "two", 1.0),
        vote("b", "three", 1.0),
        vote("c", "one", None),
        vote("c", "one", 0.5, attempt=2),
        vote("c", "two", 0.5),
        vote("d", "one", None),
        vote("d", "two", 1.0),
        vote("d", "three", 1.0),
    ]
    found = agreement(votes, JUDGES)
    assert found.replies == 4
    assert found.exact == pytest.approx(2 / 3)
    assert found.third_rate == pytest.approx(2 / 4)
    assert found.failed_rate == pytest.approx(1 / 10)
    assert found.binary_kappa == pytest.approx(0.4)
    assert agreement(reversed(votes), JUDGES) == found


def test_no_votes_say_nothing() -> None:
    found = agreement([], JUDGES)
    assert (found.exact, found.kappa, found.third_rate, found.failed_rate) == (None, None, None, None)
