"""The selection rule: a table for each branch, and agreement with a brute-force reading of the rule."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.selection import PREFERENCES, Rule, Ruling, mark_duplicates, select
from iar.records import ModelScores, SuiteScore
from tests.methods.score_tables import Row, candidate, model_scores, table

VANILLA = (40.0, (30.0, 30.0, 30.0))
TAU = 1.0


def rule(*rows: Row, tolerance: float = TAU, preference: str = "domain", **floors: float) -> Ruling:
    """Apply the rule to a table, against vanilla at D 40, G 30."""
    scores, grid = table(*rows)
    return select(scores, model_scores("vanilla", *VANILLA), grid, Rule(tolerance, preference, floors))


def verdict(ruling: Ruling, name: str) -> tuple[str, str, str, str, int]:
    """The four reasons of a candidate and the number of steps it passed."""
    found = next(item for item in ruling.verdicts if item.candidate == name)
    return found.domain_floor, found.general_floor, found.dominance, found.final, found.kept_until


def test_a_single_good_candidate_is_picked_with_its_numbers() -> None:
    ruling = rule(("a", 45.0, (40.0, 35.0, 36.0), 0.3))
    assert ruling.pick == "a"
    assert verdict(ruling, "a") == (
        "kept: D 45.00, +5.00 against vanilla, allowed -1.00",
        "kept: G 37.00, +7.00 against vanilla; ifeval +10.00, mmlu +5.00, msbench +6.00; 3 of 3 hold",
        "kept: non-dominated at D 45.00, G 37.00",
        "picked: domain tier 45.0, G 37.00",
        4,
    )


def test_domain_may_fall_by_the_tolerance_and_no_more() -> None:
    ruling = rule(("at", 39.0, (50.0, 50.0, 50.0), 0.3), ("below", 38.99, (90.0, 90.0, 90.0), 0.3))
    assert ruling.pick == "at"
    assert verdict(ruling, "below") == ("dropped: D 38.99, -1.01 against vanilla, allowed -1.00", "", "", "", 0)


def test_float_noise_decides_nothing() -> None:
    scores, grid = table(("a", 0.1 + 0.2, (30.0, 30.0, 30.0), 0.3))
    assert select(scores, model_scores("vanilla", 1.3, (30.0, 30.0, 30.0)), grid, Rule(1.0)).pick == "a"


def test_general_must_not_fall_at_all() -> None:
    ruling = rule(("a", 50.0, (29.9, 30.0, 30.0), 0.3))
    assert ruling.pick == ""
    reason = verdict(ruling, "a")[1]
    assert reason.startswith("dropped, G below vanilla: G 29.97, -0.03 against vanilla")
    assert verdict(ruling, "a")[4] == 1


def test_one_general_metric_may_fall_and_two_may_not() -> None:
    ruling = rule(("one", 45.0, (10.0, 60.0, 29.0), 0.3), ("two", 46.0, (28.9, 28.9, 90.0), 0.3))
    assert ruling.pick == "one"
    assert verdict(ruling, "two")[1].startswith("dropped, two of three must not fall by more than 1.00: G 49.27")


def test_the_front_keeps_trade_offs_and_the_leading_domain_wins() -> None:
    ruling = rule(
        ("low", 42.0, (60.0, 60.0, 60.0), 0.3),
        ("high", 44.0, (40.0, 40.0, 40.0), 0.3),
        ("inside", 42.0, (50.0, 50.0, 50.0), 0.3),
    )
    assert ruling.pick == "high"
    assert ruling.front == ("high", "low")
    assert verdict(ruling, "low")[3] == "not picked: domain tier 42.0 below high's 44.0"
    assert verdict(ruling, "inside")[2] == "dropped: dominated by low (D 42.00, G 60.00)"


def test_an_infeasible_candidate_dominates_nobody() -> None:
    ruling = rule(("infeasible", 60.0, (20.0, 20.0, 80.0), 0.3), ("a", 45.0, (35.0, 35.0, 35.0), 0.3))
    assert ruling.pick == "a"


def test_within_the_leading_tier_the_larger_general_wins() -> None:
    ruling = rule(("ahead", 44.04, (40.0, 40.0, 40.0), 0.3), ("general", 43.96, (50.0, 50.0, 50.0), 0.5))
    assert ruling.front == ("ahead", "general")
    assert ruling.pick == "general"
    assert verdict(ruling, "ahead")[3] == "not picked: tier 44.0, G 40.00 below general's 50.00"


def test_equal_general_goes_to_the_larger_least_improvement() -> None:
    ruling = rule(("uneven", 44.0, (60.0, 31.0, 29.0), 0.3), ("even", 44.0, (40.0, 40.0, 40.0), 0.7))
    assert ruling.pick == "even"
    assert verdict(ruling, "uneven")[3] == "not picked: least improvement -1.00 below even's +10.00"


def test_then_the_smaller_hyper_parameter_then_the_grid() -> None:
    equal = (44.0, (40.0, 40.0, 40.0))
    ruling = rule(("large", *equal, 0.5), ("first", *equal, 0.3), ("second", *equal, 0.3))
    assert ruling.pick == "first"
    assert verdict(ruling, "large")[3] == "not picked: hyper-parameter 0.5 larger than first's 0.3"
    assert verdict(ruling, "second")[3] == "not picked: equal to first in all, and later in the grid"


FRONT: tuple[Row, ...] = (
    ("domain", 60.0, (40.0, 33.0, 32.0), 0.7),
    ("between", 50.0, (30.0, 60.0, 54.0), 0.5),
    ("general", 41.0, (50.0, 55.0, 54.0), 0.3),
)


@pytest.mark.parametrize("preference", ["domain", "balanced", "general"])
def test_a_preference_takes_another_point_of_the_same_front(preference: str) -> None:
    ruling = rule(*FRONT, preference=preference)
    assert ruling.front == ("domain", "between", "general")
    assert ruling.pick == {"balanced": "between"}.get(preference, preference)
    assert [item.kept_until for item in ruling.verdicts] == [3 + (item == ruling.pick) for item, *_ in FRONT]


def test_a_preference_gives_its_own_reasons() -> None:
    ruling = rule(*FRONT, preference="balanced")
    assert verdict(ruling, "between")[3] == "picked: tier of the harmonic mean 49.0, G 48.00"
    assert verdict(ruling, "domain")[3] == "not picked: tier of the harmonic mean 44.2 below between's 49.0"
    ruling = rule(*FRONT, preference="general")
    assert verdict(ruling, "general")[3] == "picked: general tier 53.0, D 41.00"
    ruling = rule(("a", 44.0, (50.02, 50.0, 50.0), 0.3), ("b", 46.0, (50.0, 50.0, 50.0), 0.3), preference="general")
    assert verdict(ruling, "a")[3] == "not picked: tier 50.0, D 44.00 below b's 46.00"


def test_a_floor_takes_the_best_point_of_the_front_that_meets_it() -> None:
    ruling = rule(*FRONT, ifeval=41.0)
    assert (ruling.pick, ruling.front) == ("general", ("domain", "between", "general"))
    assert verdict(ruling, "domain")[3] == "not picked: ifeval 40.00 below its floor of 41.00"
    assert rule(*FRONT, ifeval=40.0).pick == "domain"
    assert rule(*FRONT, general=40.0, domain=45.0).pick == "between"


def test_a_floor_that_nobody_on_the_front_meets_leaves_no_pick() -> None:
    # The dominated one meets it, but it is no point of the front.
    ruling = rule(*FRONT, ("dominated", 45.0, (70.0, 31.0, 31.0), 0.3), ifeval=60.0, mmlu=10.0)
    assert (ruling.pick, len(ruling.front)) == ("", 3)
    assert verdict(ruling, "domain")[3:] == ("not picked: ifeval 40.00 below its floor of 60.00", 3)
    assert verdict(ruling, "dominated")[4] == 2


def test_the_rule_names_what_it_did() -> None:
    assert str(Rule(1.0)) == "domain floor, general floor, non-dominated, leading domain tier (1)"
    named = str(Rule(1.0, "general", {"ifeval": 40.0}))
    assert named == "domain floor, general floor, non-dominated, ifeval at least 40, leading general tier (1)"


def test_who_takes_no_part_has_the_reason_and_needs_no_scores() -> None:
    scores, grid = table(("a", 44.0, (40.0, 40.0, 40.0), 0.3), ("b", 99.0, (99.0, 99.0, 99.0), 0.3))
    ruling = select(scores[:1], model_scores("vanilla", *VANILLA), grid, Rule(TAU), {"b": "pruned: rank 2"})
    assert ruling.pick == "a"
    assert verdict(ruling, "b") == ("pruned: rank 2", "", "", "", 0)


def test_no_feasible_candidate_is_an_empty_pick_with_reasons() -> None:
    ruling = rule(("a", 10.0, (90.0, 90.0, 90.0), 0.3), ("b", 90.0, (10.0, 10.0, 10.0), 0.3))
    assert (ruling.pick, ruling.front) == ("", ())
    assert all(item.domain_floor.startswith("dropped") or item.general_floor for item in ruling.verdicts)


def test_a_duplicate_takes_part_as_its_original_only() -> None:
    scores, _ = table(("a", 44.0, (40.0, 40.0, 40.0), 0.3), ("copy", 99.0, (99.0, 99.0, 99.0), 0.1))
    ruling = select(scores, model_scores("vanilla", *VANILLA), [candidate("a"), candidate("copy", 0.1, "a")], Rule(TAU))
    assert ruling.pick == "a"
    assert verdict(ruling, "copy") == ("duplicate of a", "", "", "", 0)


def test_equal_content_is_marked_as_a_duplicate_of_the_first() -> None:
    grid = [
        candidate("a", digest="x"),
        candidate("b", digest="y"),
        candidate("c", digest="x"),
        candidate("d", 0.3, "b"),
    ]
    assert [item.duplicate_of for item in mark_duplicates(grid)] == ["", "", "a", "b"]


def test_missing_scores_are_named() -> None:
    scores, grid = table(("a", 44.0, (40.0, 40.0, 40.0), 0.3), ("b", 44.0, (40.0, 40.0, 40.0), 0.3))
    with pytest.raises(ValueError, match="no scores for b"):
        select(scores[:1], model_scores("vanilla", *VANILLA), grid, Rule(TAU))


def brute_force(rows: list[Row], vanilla: tuple[float, tuple[float, float, float]], rule: Rule) -> str:
    """Read the rule word for word in exact fractions of a twentieth of a point."""

    def exact(points: float) -> Fraction:
        return Fraction(round(points * 20), 20)

    base_d, base_g = exact(vanilla[0]), [exact(points) for points in vanilla[1]]
    tau = exact(rule.tolerance_points)
    data = [(name, exact(d), [exact(p) for p in g], value) for name, d, g, value in rows]
    one = [row for row in data if row[1] >= base_d - tau]
    two = [row for row in one if sum(row[2]) >= sum(base_g)]
    two = [row for row in two if len([1 for m, v in zip(row[2], base_g, strict=True) if m >= v - tau]) >= 2]
    three = []
    for row in two:
        better = [o for o in two if o[1] >= row[1] and sum(o[2]) >= sum(row[2])]
        if not any(o[1] > row[1] or sum(o[2]) > sum(row[2]) for o in better):
            three.append(row)

    def metrics(row: tuple[str, Fraction, list[Fraction], float]) -> dict[str, Fraction]:
        ifeval, mmlu, msbench = row[2]
        general = (ifeval + mmlu + msbench) / 3
        return {"domain": row[1], "general": general, "ifeval": ifeval, "mmlu": mmlu, "msbench": msbench}

    three = [row for row in three if not [m for m, least in rule.floors.items() if metrics(row)[m] < exact(least)]]
    if not three:
        return ""

    def tier_of(row: tuple[str, Fraction, list[Fraction], float]) -> str:
        """What the preference looks at first, as it is printed."""
        d, g = metrics(row)["domain"], metrics(row)["general"]
        first = {"domain": d, "general": g, "balanced": 2 / (1 / d + 1 / g) if d and g else Fraction(0)}
        return f"{round(float(first[rule.preference]), 9):06.1f}"

    leading = max(tier_of(row) for row in three)
    tier = [row for row in three if tier_of(row) == leading]
    second = "domain" if rule.preference == "general" else "general"
    tier = [row for row in tier if metrics(row)[second] == max(metrics(o)[second] for o in tier)]

    def least(row: tuple[str, Fraction, list[Fraction], float]) -> Fraction:
        return min(m - v for m, v in zip(row[2], base_g, strict=True))

    tier = [row for row in tier if least(row) == max(least(o) for o in tier)]
    tier = [row for row in tier if row[3] == min(o[3] for o in tier)]
    return tier[0][0]


def random_table(generator: random.Random) -> list[Row]:
    """Twelve candidates close to vanilla, on a coarse scale so that every tie occurs."""
    step = generator.choice([0.05, 0.5, 1.0])

    def near(centre: float) -> float:
        return round(centre + step * generator.randint(-3, 4), 2)

    return [
        (f"c{number}", near(40.0), (near(31.0), near(31.0), near(30.5)), generator.choice([0.3, 0.5, 0.7]))
        for number in range(12)
    ]


@pytest.mark.parametrize(
    ("rule", "count"),
    [(Rule(TAU), 1000)]
    + [(Rule(TAU, name, {"ifeval": 31.0, "domain": 40.0}), 200) for name in PREFERENCES]
    + [(Rule(TAU, name), 200) for name in ("balanced", "general")],
    ids=str,
)
def test_random_tables_agree_with_brute_force(rule: Rule, count: int) -> None:
    generator = random.Random(17)
    picks = []
    for _ in range(count):
        rows = random_table(generator)
        vanilla = (generator.choice([40.0, 40.0, 42.0]), (generator.choice([30.0, 31.0]), 31.0, 30.5))
        scores, grid = table(*rows)
        picks.append(select(scores, model_scores("vanilla", *vanilla), grid, rule).pick)
        assert picks[-1] == brute_force(rows, vanilla, rule), rows
    assert set(picks) == {"", *(f"c{number}" for number in range(12))}


POINTS = st.integers(20, 60).map(float)
ROWS = st.lists(
    st.tuples(POINTS, st.tuples(POINTS, POINTS, POINTS), st.sampled_from([0.1, 0.3, 0.5])), min_size=1, max_size=12
)


@settings(deadline=None)
@given(rows=ROWS, tolerance=st.floats(0, 5), order=st.randoms(use_true_random=False))
def test_the_order_of_scores_changes_nothing(
    rows: list[tuple[float, tuple[float, float, float], float]], tolerance: float, order: random.Random
) -> None:
    scores, grid = table(*[(f"c{number}", *row) for number, row in enumerate(rows)])
    vanilla = model_scores("vanilla", *VANILLA)
    ruling = select(scores, vanilla, grid, Rule(tolerance))
    shuffled = order.sample(scores, len(scores))
    assert select(shuffled, vanilla, grid, Rule(tolerance)) == ruling


@settings(deadline=None)
@given(rows=ROWS)
def test_the_pick_meets_the_rule_and_every_verdict_has_a_reason(
    rows: list[tuple[float, tuple[float, float, float], float]],
) -> None:
    scores, grid = table(*[(f"c{number}", *row) for number, row in enumerate(rows)])
    ruling = select(scores, model_scores("vanilla", *VANILLA), grid, Rule(TAU))
    assert [item.candidate for item in ruling.verdicts] == [item.id for item in grid]
    assert [item.candidate for item in ruling.verdicts if item.kept_until == 4] == [ruling.pick] * bool(ruling.pick)
    for item in ruling.verdicts:
        reasons = (item.domain_floor, item.general_floor, item.dominance, item.final)
        assert all(reasons[: item.kept_until + 1])
        assert not any(reasons[item.kept_until + 1 :])
    if ruling.pick:
        picked = next(item for item in scores if item.model == ruling.pick)
        assert picked.domain >= VANILLA[0] - TAU
        assert picked.general >= 30.0


@settings(deadline=None)
@given(rows=ROWS)
def test_a_candidate_that_fails_the_floor_never_changes_the_pick(
    rows: list[tuple[float, tuple[float, float, float], float]],
) -> None:
    scores, grid = table(*[(f"c{number}", *row) for number, row in enumerate(rows)])
    vanilla = model_scores("vanilla", *VANILLA)
    more_scores, more_grid = table(("hopeless", 1.0, (99.0, 99.0, 99.0), 0.1))
    assert (
        select(scores + more_scores, vanilla, grid + more_grid, Rule(TAU)).pick
        == select(scores, vanilla, grid, Rule(TAU)).pick
    )


Raised = tuple[float, tuple[float, float, float]]
MORE = st.floats(0, 20)
RAISES = st.tuples(MORE, st.tuples(MORE, MORE, MORE))


@settings(deadline=None)
@given(rows=ROWS, raised=RAISES, preference=st.sampled_from(list(PREFERENCES)))
def test_a_pick_that_gets_better_stays_the_pick(
    rows: list[tuple[float, tuple[float, float, float], float]], raised: Raised, preference: str
) -> None:
    named = [(f"c{number}", *row) for number, row in enumerate(rows)]
    pick = rule(*named, preference=preference).pick
    better = [
        (name, d + raised[0], tuple(p + more for p, more in zip(g, raised[1], strict=True)), value)
        if name == pick
        else (name, d, g, value)
        for name, d, g, value in named
    ]
    assert rule(*better, preference=preference).pick == pick


@settings(deadline=None)
@given(rows=ROWS, lowered=st.integers(1, 20), which=st.integers(0, 11))
def test_a_loser_that_gets_worse_changes_no_pick(
    rows: list[tuple[float, tuple[float, float, float], float]], lowered: int, which: int
) -> None:
    named = [(f"c{number}", *row) for number, row in enumerate(rows)]
    pick = rule(*named).pick
    name, d, g, value = named[which % len(named)]
    if name != pick:
        named[which % len(named)] = (name, d - lowered, (g[0] - lowered, g[1] - lowered, g[2] - lowered), value)
    assert rule(*named).pick == pick


@settings(deadline=None)
@given(rows=ROWS, tolerances=st.tuples(st.floats(0, 5), st.floats(0, 5)))
def test_a_larger_tolerance_keeps_whoever_a_smaller_one_kept(
    rows: list[tuple[float, tuple[float, float, float], float]], tolerances: tuple[float, float]
) -> None:
    named = [(f"c{number}", *row) for number, row in enumerate(rows)]
    strict, wide = (
        {item.candidate for item in rule(*named, tolerance=tau).verdicts if item.kept_until >= 2}
        for tau in sorted(tolerances)
    )
    assert strict <= wide


@settings(deadline=None)
@given(rows=ROWS, order=st.randoms(use_true_random=False), preference=st.sampled_from(list(PREFERENCES)))
def test_the_order_of_the_grid_decides_nothing_but_the_last_tie(
    rows: list[tuple[float, tuple[float, float, float], float]], order: random.Random, preference: str
) -> None:
    named = [(f"c{number}", *row) for number, row in enumerate(rows)]
    picks = {rule(*some, preference=preference).pick for some in (named, order.sample(named, len(named)))}
    by_name = {name: row for name, *row in named}
    # Another pick has the same D, G, least gain and hyper-parameter.
    alike = {
        (round(d, 1), round(sum(g), 6), min(p - 30 for p in g), value)
        for d, g, value in (by_name[pick] for pick in picks if pick)
    }
    assert len(alike) <= 1 and ("" not in picks or picks == {""})


def with_retention(scores: ModelScores, points: float) -> ModelScores:
    suite = SuiteScore("retention", points, points, points, 10, 0)
    return replace(scores, suites=(*scores.suites, suite))


def retained(floors: dict[str, float]) -> Ruling:
    """Two candidates, the one with the better domain score retaining less of earlier documents."""
    rows: list[Row] = [("forgets", 50.0, (40.0, 40.0, 40.0), 0.3), ("keeps", 45.0, (45.0, 45.0, 45.0), 0.5)]
    scores, grid = table(*rows)
    judged = [with_retention(one, points) for one, points in zip(scores, (10.0, 30.0), strict=True)]
    return select(judged, with_retention(model_scores("vanilla", *VANILLA), 20.0), grid, Rule(TAU, "domain", floors))


def test_retention_is_told_and_decides_only_where_a_floor_names_it() -> None:
    plain, floored = retained({}), retained({"retention": 25.0})
    assert (plain.pick, floored.pick) == ("forgets", "keeps")
    assert verdict(plain, "forgets")[0].endswith("allowed -1.00; retention 10.00, -10.00 against vanilla")
    assert verdict(floored, "forgets")[3] == "not picked: retention 10.00 below its floor of 25.00"
    assert plain.front == floored.front and "retention" not in verdict(plain, "forgets")[1]
