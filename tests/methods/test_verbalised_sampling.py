"""Verbalised sampling: each answer is drawn as often as the model says it would give it."""

import random
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from iar.methods.verbalised_sampling import draw_order, draw_question

PROBABILITIES = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=8)


@given(PROBABILITIES, st.integers(0, 99))
@example([0.0, 0.0, 1e-308], 52)
def test_whatever_a_model_states_every_answer_has_a_place_and_what_is_no_probability_the_last(
    probabilities: list[float], seed: int
) -> None:
    order = draw_order(probabilities, random.Random(seed))
    assert sorted(order) == list(range(len(probabilities)))
    assert order == draw_order(probabilities, random.Random(seed))
    sound = [0 < probabilities[place] < float("inf") for place in order]
    assert sound == sorted(sound, reverse=True)


def test_the_first_is_drawn_by_its_share() -> None:
    generator = random.Random(5)
    first = Counter(draw_order([0.6, 0.3, 0.1, 0.0], generator)[0] for _ in range(4000))
    assert [round(first[place] / 4000, 1) for place in range(4)] == [0.6, 0.3, 0.1, 0.0]


def test_without_any_probability_all_are_alike() -> None:
    generator = random.Random(5)
    first = Counter(draw_order([0.0, -1.0], generator)[0] for _ in range(1000))
    assert abs(first[0] - 500) < 60


def test_a_refused_question_gives_way_to_the_next_and_every_one_has_its_reason() -> None:
    proposals = [("bad?", 1e9), ("good?", 1.0), ("spare?", 1e-9), ("late?", 1.0)]
    drawn, others = draw_question(proposals, 3, lambda text: "bad" * text.startswith("bad"), random.Random(1))
    assert drawn == "good?"
    assert sorted(others) == [("bad?", "bad"), ("late?", "beyond question_candidates"), ("spare?", "not drawn")]


def test_where_all_are_refused_none_is_drawn() -> None:
    drawn, others = draw_question([("a", 0.5), ("b", 0.5)], 5, lambda text: "no question", random.Random(1))
    assert (drawn, len(others)) == ("", 2)
