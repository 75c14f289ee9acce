"""The selection rule: four steps over the candidates' validation scores, a reason for each verdict.

Source: "Inject, Align, Recover", selection on validation with tolerance tau. A domain tier is equal
D after rounding to 0.1 point; the last tie goes to the order of the grid. The first three steps find the
front; the fourth takes a point of it, by the preference of the rule or by another one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iar.records import RETENTION, Candidate, CandidateVerdict, ModelScores

GENERAL_SUITES = ("ifeval", "mmlu", "msbench")
LETTERS = {"domain": "D", "general": "G"}
VERSION = 1

Metrics = Mapping[str, float]
"""Points of one model: domain, general, the three suites; in a run on another also retention, which is no part of G and
of the rule only where a floor names it."""
Judgement = tuple[bool, str]
"""Whether a candidate is kept at a step, and why."""


@dataclass(frozen=True)
class Preference:
    """Which point of the front is taken: of the leading tier of `measure`, in 0.1 point, the largest `then`."""

    tier: str
    measure: Callable[[Metrics], float]
    then: str


def harmonic_mean(metrics: Metrics) -> float:
    """Return 2DG / (D + G): near the smaller of the two, 0 where one is 0."""
    domain, general = metrics["domain"], metrics["general"]
    return 2 * domain * general / (domain + general) if domain + general else 0.0


PREFERENCES = {
    "domain": Preference("domain tier", lambda metrics: metrics["domain"], "general"),
    "balanced": Preference("tier of the harmonic mean", harmonic_mean, "general"),
    "general": Preference("general tier", lambda metrics: metrics["general"], "domain"),
}


@dataclass(frozen=True)
class Rule:
    """tau in points, a name of PREFERENCES, and the least points by metric that a pick must have.

    Preference `domain` without floors is the rule of the method.
    """

    tolerance_points: float
    preference: str = "domain"
    floors: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        least = "".join(f"{metric} at least {points:g}, " for metric, points in self.floors.items())
        tier = PREFERENCES[self.preference].tier
        return f"domain floor, general floor, non-dominated, {least}leading {tier} ({VERSION})"


@dataclass(frozen=True)
class Ruling:
    """The pick ("" when none is feasible), a verdict a grid entry in grid order, the front ranked by D."""

    pick: str
    verdicts: tuple[CandidateVerdict, ...]
    front: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """What the rule compares, in points; gains are differences to vanilla. `order` is the place in the grid."""

    id: str
    metrics: Metrics
    gains: Metrics
    value: float
    order: int

    @property
    def domain(self) -> float:
        """D of the candidate."""
        return self.metrics["domain"]

    @property
    def general(self) -> float:
        """G of the candidate."""
        return self.metrics["general"]

    @property
    def least_gain(self) -> float:
        """The minimum improvement over the three general metrics."""
        return min(self.gains[name] for name in GENERAL_SUITES)

    def tier(self, preference: Preference) -> float:
        """Return what the preference looks at first, in 0.1 point."""
        return round(preference.measure(self.metrics), 1)

    def missed(self, floors: Mapping[str, float]) -> list[str]:
        """Return the metrics that are below their floor."""
        return [name for name, least in floors.items() if not self.metrics[name] >= least]


def select(
    candidates: Sequence[ModelScores],
    vanilla: ModelScores,
    grid: Sequence[Candidate],
    rule: Rule,
    out: Mapping[str, str] | None = None,
) -> Ruling:
    """Apply the four steps to the grid entries that are no duplicates and not in `out`; scores in points.

    `out` gives by id why a candidate takes no part. Raises ValueError naming a grid entry without scores.
    """
    out = {one.id: f"duplicate of {one.duplicate_of}" for one in grid if one.duplicate_of} | dict(out or {})
    by_model = {scores.model: scores for scores in candidates}
    taking_part = [candidate for candidate in grid if candidate.id not in out]
    if missing := [candidate.id for candidate in taking_part if candidate.id not in by_model]:
        raise ValueError(f"no scores for {', '.join(missing)}")
    compared = metrics_of(vanilla)
    entries = [
        entry(item.id, metrics_of(by_model[item.id]), compared, item.value, order)
        for order, item in enumerate(taking_part)
    ]
    pick, front, steps = decide(entries, rule)
    return Ruling(pick, tuple(_verdict(candidate.id, out, steps) for candidate in grid), front)


def decide(entries: Sequence[Entry], rule: Rule) -> tuple[str, tuple[str, ...], tuple[dict[str, Judgement], ...]]:
    """Return the pick ("" for none), the front ranked by D, and the judgements of each of the four steps by id."""
    above, floor = _step(entries, lambda one: _domain_floor(one, rule.tolerance_points))
    feasible, general = _step(above, lambda one: _general_floor(one, rule.tolerance_points))
    front, dominance = _step(feasible, lambda one: _non_dominated(one, feasible))
    front.sort(key=lambda one: (-one.domain, one.order))
    preference = PREFERENCES[rule.preference]
    eligible = [one for one in front if not one.missed(rule.floors)]
    best = min(eligible, key=lambda one: _rank(one, preference), default=None)
    final = {one.id: _final(one, best, rule) for one in front}
    return best.id if best else "", tuple(one.id for one in front), (floor, general, dominance, final)


def metrics_of(scores: ModelScores) -> Metrics:
    """Return the points of a model that the rule compares."""
    suites = {one.suite: one.points for one in scores.suites if one.suite in (*GENERAL_SUITES, RETENTION)}
    return {"domain": scores.domain, "general": scores.general} | suites


def entry(name: str, metrics: Metrics, vanilla: Metrics, value: float, order: int) -> Entry:
    """Return what the rule compares of one candidate."""
    # Scores are ratios of small integers: 9 digits take away float noise, which must not decide a comparison.
    points = {metric: round(value, 9) for metric, value in metrics.items()}
    gains = {metric: round(value - vanilla[metric], 9) for metric, value in metrics.items()}
    return Entry(name, points, gains, value, order)


def mark_duplicates(grid: Sequence[Candidate]) -> list[Candidate]:
    """Return the grid with every later candidate of equal content marked as a duplicate of the first."""
    first: dict[str, str] = {}
    marked = []
    for candidate in grid:
        original = candidate.duplicate_of or first.setdefault(candidate.digest, candidate.id)
        marked.append(replace(candidate, duplicate_of="" if original == candidate.id else original))
    return marked


def _rank(one: Entry, preference: Preference) -> tuple[float, float, float, float, int]:
    """Smallest first: the leading tier, then G or D, minimum improvement, hyper-parameter, grid order."""
    return -one.tier(preference), -one.metrics[preference.then], -one.least_gain, one.value, one.order


def _step(entries: Sequence[Entry], judge: Callable[[Entry], Judgement]) -> tuple[list[Entry], dict[str, Judgement]]:
    """Return the entries that are kept, and the judgement on each."""
    judgements = {one.id: judge(one) for one in entries}
    return [one for one in entries if judgements[one.id][0]], judgements


def _domain_floor(one: Entry, tolerance: float) -> Judgement:
    gain = one.gains["domain"]
    kept = gain >= -tolerance
    numbers = f"D {one.domain:.2f}, {gain:+.2f} against vanilla, allowed {-tolerance:+.2f}"
    return kept, f"{'kept' if kept else 'dropped'}: {numbers}{_retained(one)}"


def _retained(one: Entry) -> str:
    """Say what is retained of earlier document sets, beside a reason in which it plays no part; "" without any."""
    if RETENTION not in one.metrics:
        return ""
    return f"; retention {one.metrics[RETENTION]:.2f}, {one.gains[RETENTION]:+.2f} against vanilla"


def _general_floor(one: Entry, tolerance: float) -> Judgement:
    holding = sum(one.gains[name] >= -tolerance for name in GENERAL_SUITES)
    gains = ", ".join(f"{name} {one.gains[name]:+.2f}" for name in GENERAL_SUITES)
    numbers = f"G {one.general:.2f}, {one.gains['general']:+.2f} against vanilla; {gains}; {holding} of 3 hold"
    if not one.gains["general"] >= 0:
        return False, f"dropped, G below vanilla: {numbers}"
    if holding < 2:
        return False, f"dropped, two of three must not fall by more than {tolerance:.2f}: {numbers}"
    return True, f"kept: {numbers}"


def _non_dominated(one: Entry, feasible: Sequence[Entry]) -> Judgement:
    for other in feasible:
        as_good = other.domain >= one.domain and other.general >= one.general
        if as_good and (other.domain, other.general) != (one.domain, one.general):
            return False, f"dropped: dominated by {other.id} (D {other.domain:.2f}, G {other.general:.2f})"
    return True, f"kept: non-dominated at D {one.domain:.2f}, G {one.general:.2f}"


def _final(one: Entry, best: Entry | None, rule: Rule) -> Judgement:
    """Compare with the pick along the order of preference; the first difference is the reason."""
    if missed := one.missed(rule.floors):
        below = [f"{name} {one.metrics[name]:.2f} below its floor of {rule.floors[name]:.2f}" for name in missed]
        return False, f"not picked: {', '.join(below)}"
    assert best is not None  # this entry misses no floor, so there is a best one
    preference = PREFERENCES[rule.preference]
    tier, then = one.tier(preference), one.metrics[preference.then]
    best_tier, best_then = best.tier(preference), best.metrics[preference.then]
    if one is best:
        return True, f"picked: {preference.tier} {tier:.1f}, {LETTERS[preference.then]} {then:.2f}"
    if tier != best_tier:
        return False, f"not picked: {preference.tier} {tier:.1f} below {best.id}'s {best_tier:.1f}"
    if then != best_then:
        numbers = f"{LETTERS[preference.then]} {then:.2f} below {best.id}'s {best_then:.2f}"
        return False, f"not picked: tier {tier:.1f}, {numbers}"
    least, best_least = one.least_gain, best.least_gain
    if least != best_least:
        return False, f"not picked: least improvement {least:+.2f} below {best.id}'s {best_least:+.2f}"
    if one.value != best.value:
        return False, f"not picked: hyper-parameter {one.value:g} larger than {best.id}'s {best.value:g}"
    return False, f"not picked: equal to {best.id} in all, and later in the grid"


def _verdict(name: str, out: Mapping[str, str], steps: Sequence[dict[str, Judgement]]) -> CandidateVerdict:
    if name in out:
        return CandidateVerdict(name, out[name], "", "", "", 0)
    judgements = [step.get(name, (False, "")) for step in steps]
    passed = [kept for kept, _ in judgements]
    floor, general, dominance, final = (reason for _, reason in judgements)
    kept_until = passed.index(False) if False in passed else len(passed)
    return CandidateVerdict(name, floor, general, dominance, final, kept_until)
