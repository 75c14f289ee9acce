"""Paired differences: by item, within each suite."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.paired import paired
from iar.records import ItemScore


def scores(model: str, suite: str, values: list[float | None]) -> list[ItemScore]:
    return [ItemScore(model, suite, f"{suite}-{index}", value, "") for index, value in enumerate(values)]


def test_a_constant_lead_has_no_spread_although_the_items_differ() -> None:
    ours, theirs = scores("pick", "domain", [1, 0.5, 1, 0.5]), scores("vanilla", "domain", [0.5, 0, 0.5, 0])
    difference = paired("domain", ["domain"], ours, theirs, 200, 0)
    assert (difference.points, difference.low, difference.high) == (50, 50, 50)
    assert (difference.model, difference.against, difference.items) == ("pick", "vanilla", 4)


def test_suites_weigh_the_same_whatever_their_length() -> None:
    ours = scores("pick", "ifeval", [1] * 9) + scores("pick", "mmlu", [0])
    theirs = scores("v", "ifeval", [0] * 9) + scores("v", "mmlu", [0])
    assert paired("general", ["ifeval", "mmlu"], ours, theirs, 100, 0).points == 50


def test_items_unscored_in_either_model_are_left_out() -> None:
    ours, theirs = scores("pick", "domain", [1, None, 1]), scores("v", "domain", [0, 0, None])
    difference = paired("domain", ["domain"], ours, theirs, 100, 0)
    assert (difference.points, difference.items) == (100, 1)


def test_a_suite_without_a_common_item_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        paired("domain", ["domain"], scores("a", "domain", [None]), scores("b", "domain", [1]), 10, 0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=20))
def test_a_model_does_not_differ_from_itself(values: list[float | None]) -> None:
    ours = scores("a", "domain", values)
    difference = paired("domain", ["domain"], ours, ours, 50, 1)
    assert (difference.points, difference.low, difference.high) == (0, 0, 0)
