"""How often each candidate wins on resampled items: paired draws, the rule itself, unscored items left out."""

from dataclasses import replace

import pytest

from iar.methods.pick_stability import SUITES, pick_stability
from iar.methods.selection import Rule
from iar.records import ItemScore, PickStability

RULE = Rule(1.0)


def items(model: str, right: float, general: float = 0.5, count: int = 40) -> list[ItemScore]:
    """Item scores of a model that has the first `right` share of the domain items right, and of each suite."""
    return [
        ItemScore(model, suite, f"{suite}-{n}", float(n < count * (right if suite == "domain" else general)), "")
        for suite in SUITES
        for n in range(count)
    ]


def shares(
    candidates: dict[str, list[ItemScore]], vanilla: list[ItemScore], rule: Rule = RULE, resamples: int = 300
) -> PickStability:
    return pick_stability(candidates, vanilla, dict.fromkeys(candidates, 0.3), rule, resamples, 17)


def test_a_candidate_that_is_right_wherever_others_are_and_more_wins_always() -> None:
    found = shares({"a": items("a", 0.9, 0.6), "b": items("b", 0.3, 0.6)}, items("vanilla", 0.2))
    assert found == PickStability(300, {"a": 1.0, "b": 0.0}, 0.0)


def test_what_two_models_share_takes_no_part() -> None:
    # Unpaired, a candidate equal to vanilla would fall below its general score in every second resample.
    found = shares({"same": items("same", 0.5)}, items("vanilla", 0.5))
    assert found == PickStability(300, {"same": 1.0}, 0.0)


def test_a_narrow_lead_is_shared_and_the_shares_are_a_whole() -> None:
    first, second = items("a", 0.0), items("b", 0.0)
    # Right on different items, 21 of them against 20.
    first = [replace(one, score=float(one.suite != "domain" or n < 21)) for n, one in enumerate(first)]
    second = [replace(one, score=float(one.suite != "domain" or n >= 20)) for n, one in enumerate(second)]
    found = shares({"a": first, "b": second}, items("vanilla", 0.1))
    assert 0.4 < found.wins["a"] < 0.75
    assert sum(found.wins.values()) + found.none_feasible == pytest.approx(1)
    assert found == shares({"a": first, "b": second}, items("vanilla", 0.1))


def test_none_feasible_has_its_share() -> None:
    assert shares({"a": items("a", 0.1)}, items("vanilla", 0.9)) == PickStability(300, {"a": 0.0}, 1.0)
    # One item of each suite decides, drawn at least once in about 1 - 1/e of the resamples.
    better = [replace(one, score=float(one.item_id.endswith("-0"))) for one in items("vanilla", 0.0)]
    worse = [replace(one, score=0.0) for one in better]
    found = shares({"a": worse}, better, Rule(0.0), 2000)
    assert found.none_feasible == pytest.approx(1 - (1 / 2.72) ** 4, abs=0.03)


def test_preference_and_floors_count_in_every_resample() -> None:
    candidates = {"a": items("a", 0.9, 0.6), "b": items("b", 0.5, 0.9)}
    vanilla = items("vanilla", 0.2)
    assert shares(candidates, vanilla).wins == {"a": 1.0, "b": 0.0}
    assert shares(candidates, vanilla, Rule(1.0, "general")).wins == {"a": 0.0, "b": 1.0}
    floor = shares(candidates, vanilla, Rule(1.0, "domain", {"mmlu": 60.0}))
    # A mean of 60 is above the floor in about half of the resamples, one of 90 in all.
    assert 0.35 < floor.wins["a"] < 0.65 and floor.none_feasible == 0.0


def test_unscored_items_leave_the_mean_of_their_model() -> None:
    vanilla = items("vanilla", 0.5)
    holes = [replace(one, score=None) if one.item_id.endswith("9") else one for one in items("a", 1.0, 1.0)]
    assert shares({"a": holes}, vanilla).wins == {"a": 1.0}
    # Ten items, one of them scored: the resamples without it have no domain score, and no pick.
    few = [
        replace(one, score=None) if one.suite == "domain" and one.item_id != "domain-0" else one
        for one in items("a", 1.0, 1.0, 10)
    ]
    found = shares({"a": few}, items("vanilla", 0.5, 0.5, 10), resamples=2000)
    assert found.none_feasible == pytest.approx(0.9**10, abs=0.03)


def test_other_items_than_those_of_vanilla_are_refused() -> None:
    with pytest.raises(ValueError, match="a was asked other items of domain than vanilla"):
        shares({"a": items("a", 0.5)[1:]}, items("vanilla", 0.5))


def test_a_floor_on_retention_counts_in_every_resample_and_moves_no_other_draw() -> None:
    def asked(model: str, right: float, general: float, retained: float) -> list[ItemScore]:
        kept = [ItemScore(model, "retention", f"r-{n}", float(n < 40 * retained), "") for n in range(40)]
        return [*items(model, right, general), *kept]

    candidates = {"a": asked("a", 0.9, 0.6, 0.5), "b": asked("b", 0.5, 0.9, 1.0)}
    vanilla = asked("vanilla", 0.2, 0.5, 0.5)
    floor = shares(candidates, vanilla, Rule(1.0, "domain", {"retention": 90.0}))
    assert floor.wins == {"a": 0.0, "b": 1.0}
    without = {name: [one for one in own if one.suite != "retention"] for name, own in candidates.items()}
    assert shares(candidates, vanilla) == shares(without, [one for one in vanilla if one.suite != "retention"])
