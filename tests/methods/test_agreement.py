"""Agreement of the judges, against numbers worked out by hand, scikit-learn's kappas and nltk's alpha."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.agreement import Agreement, Estimate, agreement, human_agreement
from iar.methods.ballots import ReplyFacts, collect
from iar.records import Vote

JUDGES = ("one", "two", "three")
GRADES = st.sampled_from([0.0, 0.5, 1.0])


def vote(item: str, judge: str, score: float | None, attempt: int = 1, model: str = "m") -> Vote:
    """A vote on reply `item`; None is a failed one."""
    return Vote(model, "domain", item, judge, "1", attempt, score, "", "")


def pairs_of(pairs: list[tuple[float | None, float | None]], **settings: int) -> Agreement:
    """Return the agreement of two judges on items of their own."""
    votes = [
        vote(str(n), judge, score)
        for n, pair in enumerate(pairs)
        for judge, score in zip(JUDGES[:2], pair, strict=True)
    ]
    return agreement(collect(votes, JUDGES), **settings)


def test_kappa_of_a_known_table() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed .7, by chance .5
    found = pairs_of([(1.0, 1.0)] * 20 + [(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 10 + [(0.0, 0.0)] * 15)
    assert found.kappa.value == found.binary_kappa.value == found.weighted_kappa.value == pytest.approx(0.4)
    assert found.exact.value == pytest.approx(0.7)


def test_kappa_says_nothing_where_chance_agrees_fully() -> None:
    found = pairs_of([(1.0, 1.0), (1.0, 1.0)])
    assert (found.kappa, found.alpha, found.exact) == (Estimate(None), Estimate(None), Estimate(1.0, 1.0, 1.0))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(GRADES, GRADES), min_size=2, max_size=40))
def test_kappas_are_those_of_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    first, second = ([int(2 * pair[side]) for pair in pairs] for side in (0, 1))
    found = pairs_of(pairs, resamples=2)
    for ours, settings_ in ((found.kappa, {}), (found.weighted_kappa, {"weights": "quadratic"})):
        if ours.value is None:
            assert len({*first, *second}) == 1
        else:
            assert ours.value == pytest.approx(metrics.cohen_kappa_score(first, second, labels=[0, 1, 2], **settings_))
    if found.binary_kappa.value is not None:
        fully = ([grade == 2 for grade in side] for side in (first, second))
        assert found.binary_kappa.value == pytest.approx(metrics.cohen_kappa_score(*fully))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(GRADES, GRADES), min_size=2, max_size=40))
def test_alpha_is_that_of_nltk(pairs: list[tuple[float, float]]) -> None:
    task = pytest.importorskip("nltk.metrics.agreement")
    data = [(judge, n, pair[side]) for n, pair in enumerate(pairs) for side, judge in enumerate(("one", "two"))]
    found = pairs_of(pairs, resamples=2).alpha.value
    if len({grade for pair in pairs for grade in pair}) == 1:
        assert found is None
    else:
        oracle = task.AnnotationTask(data, distance=lambda a, b: (a - b) ** 2)
        assert found == pytest.approx(oracle.alpha())


@settings(deadline=None)
@given(st.lists(GRADES, min_size=1, max_size=30))
def test_a_judge_agrees_with_itself(scores: list[float]) -> None:
    kappa = pairs_of([(score, score) for score in scores], resamples=2).kappa.value
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
    found = agreement(collect(votes, JUDGES))
    assert found.replies == 4
    assert found.exact.value == pytest.approx(2 / 3)
    assert found.third_rate.value == pytest.approx(2 / 4)
    assert found.failed_rate.value == pytest.approx(1 / 10)
    assert found.unscored_rate.value == 0
    assert found.binary_kappa.value == pytest.approx(0.4)
    backwards = agreement(collect(reversed(votes), JUDGES))
    assert (backwards.exact.value, backwards.kappa.value) == (found.exact.value, found.kappa.value)


def test_two_failed_votes_leave_a_reply_unscored() -> None:
    votes = [vote("a", "one", None), vote("a", "two", 1.0), vote("a", "three", None), vote("b", "one", 1.0)]
    votes += [vote("b", "two", 1.0), vote("b", "a stranger", 0.0)]
    found = agreement(collect(votes, JUDGES))
    assert (found.unscored_rate.value, found.failed_rate.value, found.replies) == (0.5, pytest.approx(2 / 5), 2)


def test_no_votes_say_nothing() -> None:
    found = agreement(collect([], JUDGES))
    estimates = (found.exact, found.kappa, found.third_rate, found.failed_rate, found.length_bias)
    assert found.replies == 0 and all(one == Estimate(None) for one in estimates)


def test_an_interval_is_of_items_not_of_replies() -> None:
    # Ten models answer each of 40 items; judges agree on all ten replies to an item, or on none.
    draw = np.random.default_rng(0)
    agreed = draw.random(40) < 0.7
    one_model = [(1.0, 1.0 if same else 0.0) for same in agreed]
    votes = [
        vote(str(n), judge, score, model=f"m{model}")
        for model in range(10)
        for n, pair in enumerate(one_model)
        for judge, score in zip(JUDGES[:2], pair, strict=True)
    ]
    found, alone = agreement(collect(votes, JUDGES)).exact, pairs_of(list(one_model)).exact
    assert found == alone
    spread = 1.96 * math.sqrt(found.value * (1 - found.value) / 40)
    assert found.low == pytest.approx(found.value - spread, abs=0.03)


def test_what_sways_the_first_judge_alone_is_a_bias() -> None:
    votes, facts = [], {}
    for n in range(200):
        long, late = n % 2, n // 2 % 2
        score = 1.0 if long else 0.5  # the first judge likes long replies, neither minds where the answer stands
        votes += [vote(str(n), "one", score), vote(str(n), "two", 0.5)]
        facts["m", "domain", str(n)] = ReplyFacts(100 if long else 10, 0.8 if late else 0.1)
    found = agreement(collect(votes, JUDGES, facts))
    assert (found.length_bias, found.place_bias.value) == (Estimate(50.0, 50.0, 50.0), 0.0)
    assert agreement(collect(votes, JUDGES)).length_bias == Estimate(None)


def test_people_beside_a_judge_are_weighted_by_what_they_stand_for() -> None:
    # Two of the three labelled replies agree; the third stands for eight others.
    found = human_agreement("one", [1.0, 0.0, 1.0, None], [1.0, 0.0, 0.0, 1.0], [1, 1, 8, 1])
    assert (found.answers, found.exact.value, found.difference.value) == (3, pytest.approx(0.2), pytest.approx(80))
    alone = human_agreement("one", [1.0, 0.0], [1.0, 0.0], [1, 1])
    assert (alone.kappa.value, alone.weighted_kappa.value) == (1.0, 1.0)
    assert human_agreement("one", [None], [1.0], [1]).exact == Estimate(None)
