"""The selection rule: four steps over the candidates' validation scores, a reason for each verdict.

Source: "Inject, Align, Recover", selection on validation with tolerance tau. A domain tier is equal
D after rounding to 0.1 point; the last tie goes to the order of the grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iar.records import Candidate, CandidateVerdict, ModelScores

RULE = "domain floor, general floor, non-dominated, leading domain tier (1)"
GENERAL_SUITES = ("ifeval", "mmlu", "msbench")

Judgement = tuple[bool, str]
"""Whether a candidate is kept at a step, and why."""


@dataclass(frozen=True)
class Ruling:
    """The pick ("" when none is feasible), a verdict a grid entry in grid order, the front ranked by D."""

    pick: str
    verdicts: tuple[CandidateVerdict, ...]
    front: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """What the rule compares, in points; gains are differences to vanilla."""

    id: str
    domain: float
    general: float
    domain_gain: float
    general_gain: float
    suite_gains: tuple[float, ...]
    value: float
    order: int

    @property
    def tier(self) -> float:
        return round(self.domain, 1)

    @property
    def preference(self) -> tuple[float, float, float, float, int]:
        """Smallest first: the leading tier, then G, minimum improvement, hyper-parameter, grid order."""
        return -self.tier, -self.general, -min(self.suite_gains), self.value, self.order


def select(
    candidates: Sequence[ModelScores], vanilla: ModelScores, grid: Sequence[Candidate], tolerance_points: float
) -> Ruling:
    """Apply the four steps to the grid entries that are no duplicates; scores and tolerance in points.

    Raises ValueError naming a grid entry without scores.
    """
    by_model = {scores.model: scores for scores in candidates}
    originals = [candidate for candidate in grid if not candidate.duplicate_of]
    missing = [candidate.id for candidate in originals if candidate.id not in by_model]
    if missing:
        raise ValueError(f"no scores for {', '.join(missing)}")
    entries = [_entry(by_model[item.id], vanilla, item.value, order) for order, item in enumerate(originals)]

    above, floor = _step(entries, lambda entry: _domain_floor(entry, tolerance_points))
    feasible, general = _step(above, lambda entry: _general_floor(entry, tolerance_points))
    front, dominance = _step(feasible, lambda entry: _non_dominated(entry, feasible))
    front.sort(key=lambda entry: (-entry.domain, entry.order))
    best = min(front, key=lambda entry: entry.preference, default=None)
    final = {entry.id: _final(entry, best) for entry in front if best}

    verdicts = tuple(_verdict(candidate, (floor, general, dominance, final)) for candidate in grid)
    return Ruling(best.id if best else "", verdicts, tuple(entry.id for entry in front))


def mark_duplicates(grid: Sequence[Candidate]) -> list[Candidate]:
    """Return the grid with every later candidate of equal content marked as a duplicate of the first."""
    first: dict[str, str] = {}
    marked = []
    for candidate in grid:
        original = candidate.duplicate_of or first.setdefault(candidate.digest, candidate.id)
        marked.append(replace(candidate, duplicate_of="" if original == candidate.id else original))
    return marked


def _entry(scores: ModelScores, vanilla: ModelScores, value: float, order: int) -> _Entry:
    # Scores are ratios of small integers: 9 digits take away float noise, which must not decide a comparison.
    gains = tuple(round(scores.suite(name).points - vanilla.suite(name).points, 9) for name in GENERAL_SUITES)
    return _Entry(
        id=scores.model,
        domain=round(scores.domain, 9),
        general=round(scores.general, 9),
        domain_gain=round(scores.domain - vanilla.domain, 9),
        general_gain=round(scores.general - vanilla.general, 9),
        suite_gains=gains,
        value=value,
        order=order,
    )


def _step(entries: Sequence[_Entry], judge: Callable[[_Entry], Judgement]) -> tuple[list[_Entry], dict[str, Judgement]]:
    """Return the entries that are kept, and the judgement on each."""
    judgements = {entry.id: judge(entry) for entry in entries}
    return [entry for entry in entries if judgements[entry.id][0]], judgements


def _domain_floor(entry: _Entry, tolerance: float) -> Judgement:
    kept = entry.domain_gain >= -tolerance
    numbers = f"D {entry.domain:.2f}, {entry.domain_gain:+.2f} against vanilla, allowed {-tolerance:+.2f}"
    return kept, f"{'kept' if kept else 'dropped'}: {numbers}"


def _general_floor(entry: _Entry, tolerance: float) -> Judgement:
    holding = sum(gain >= -tolerance for gain in entry.suite_gains)
    gains = ", ".join(f"{name} {gain:+.2f}" for name, gain in zip(GENERAL_SUITES, entry.suite_gains, strict=True))
    numbers = f"G {entry.general:.2f}, {entry.general_gain:+.2f} against vanilla; {gains}; {holding} of 3 hold"
    if not entry.general_gain >= 0:
        return False, f"dropped, G below vanilla: {numbers}"
    if holding < 2:
        return False, f"dropped, two of three must not fall by more than {tolerance:.2f}: {numbers}"
    return True, f"kept: {numbers}"


def _non_dominated(entry: _Entry, feasible: Sequence[_Entry]) -> Judgement:
    for other in feasible:
        as_good = other.domain >= entry.domain and other.general >= entry.general
        if as_good and (other.domain, other.general) != (entry.domain, entry.general):
            return False, f"dropped: dominated by {other.id} (D {other.domain:.2f}, G {other.general:.2f})"
    return True, f"kept: non-dominated at D {entry.domain:.2f}, G {entry.general:.2f}"


def _final(entry: _Entry, best: _Entry) -> Judgement:
    """Compare with the pick along the order of preference; the first difference is the reason."""
    if entry is best:
        return True, f"picked: domain tier {entry.tier:.1f}, G {entry.general:.2f}"
    if entry.tier != best.tier:
        return False, f"not picked: domain tier {entry.tier:.1f} below {best.id}'s {best.tier:.1f}"
    if entry.general != best.general:
        return False, f"not picked: tier {entry.tier:.1f}, G {entry.general:.2f} below {best.id}'s {best.general:.2f}"
    least, best_least = min(entry.suite_gains), min(best.suite_gains)
    if least != best_least:
        return False, f"not picked: least improvement {least:+.2f} below {best.id}'s {best_least:+.2f}"
    if entry.value != best.value:
        return False, f"not picked: hyper-parameter {entry.value:g} larger than {best.id}'s {best.value:g}"
    return False, f"not picked: equal to {best.id} in all, and later in the grid"


def _verdict(candidate: Candidate, steps: Sequence[dict[str, Judgement]]) -> CandidateVerdict:
    if candidate.duplicate_of:
        return CandidateVerdict(candidate.id, f"duplicate of {candidate.duplicate_of}", "", "", "", 0)
    judgements = [step.get(candidate.id, (False, "")) for step in steps]
    passed = [kept for kept, _ in judgements]
    floor, general, dominance, final = (reason for _, reason in judgements)
    kept_until = passed.index(False) if False in passed else len(passed)
    return CandidateVerdict(candidate.id, floor, general, dominance, final, kept_until)
