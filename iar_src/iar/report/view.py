"""From the run's data to what the page shows: facts as short rows and sentences, still plain text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iar import __version__
from iar.config import Endpoint, RunFile
from iar.methods.agreement import Agreement, Estimate
from iar.methods.filter_report import calibrated as calibrated
from iar.methods.filter_report import triple as triple
from iar.methods.paired import PairedDifference
from iar.methods.verification import attack_success, exactness, precision, recall
from iar.records import (
    OUTCOMES,
    RETENTION,
    AttackResult,
    FunnelStep,
    ModelScores,
    Selection,
    SuiteScore,
    VerifierAudit,
)
from iar.report.data import ReportData, results_json
from iar.report.tables import COLUMNS, DESCRIPTIONS, difference_text, looks_cells, points_text, recipe_lines

COUNTED = ("domain", "ifeval", "mmlu", "msbench", "cross_document", RETENTION)
AXES = (("domain", "Domain: held-out questions"), ("general", "General: mean of IFEval, MMLU, MSBench"))
STEPS = ("above the domain floor", "above the general floor", "not dominated", "picked")
DETAILS = (
    ("domain", "strict_share", "Domain fully right"),
    ("domain", "truncated_share", "Domain cut off"),
    ("domain", "third_judge_rate", "Domain third judge"),
    ("domain", "flagged_share", "Domain flagged"),
    ("ifeval", "loose_share", "IFEval loose"),
    ("ifeval", "instruction_strict_share", "IFEval instructions"),
    ("ifeval", "instruction_loose_share", "IFEval instructions loose"),
    ("ifeval", "truncated_share", "IFEval cut off"),
    ("mmlu", "unparsed_share", "MMLU no letter"),
    ("mmlu", "truncated_share", "MMLU cut off"),
    ("msbench", "truncated_share", "MSBench cut off"),
    ("msbench", "third_judge_rate", "MSBench third judge"),
    ("msbench", "flagged_share", "MSBench flagged"),
)

AUDIT = ("Attacks above 0", "Attacks with 1", "Precision", "Recall", "Same as people")
AGREEMENT = (
    ("Exact agreement", "exact"),
    ("Cohen's kappa", "kappa"),
    ("Fully right or not", "binary_kappa"),
    ("Quadratic weights", "weighted_kappa"),
    ("Krippendorff's alpha", "alpha"),
    ("Third judge", "third_rate"),
    ("Failed votes", "failed_rate"),
    ("Unscored", "unscored_rate"),
    ("First judge on long replies", "length_bias"),
    ("First judge on late answers", "place_bias"),
)


@dataclass(frozen=True)
class Cell:
    """A score to show: points, interval and what it stands on; `note` where replies went unscored."""

    points: float
    low: float
    high: float
    note: str = ""

    @property
    def text(self) -> str:
        """Points with the interval."""
        return points_text(asdict(self))


@dataclass(frozen=True)
class Headline:
    """One axis on the locked test: scores of pick, vanilla and theta_0, and what the pick gains on the two."""

    title: str
    scores: tuple[tuple[str, Cell], ...]
    gains: tuple[tuple[str, str, str], ...]


def cells(scores: ModelScores) -> list[Cell]:
    """Return domain, the three general suites, and general; in a run on another also retention."""
    shown = [_suite_cell(scores.suite(name)) for name, _ in COLUMNS[:-1]]
    retained = [_suite_cell(suite) for suite in scores.suites if suite.suite == RETENTION]
    return [*shown, Cell(scores.general, scores.general_low, scores.general_high), *retained]


def headlines(report: ReportData) -> list[Headline]:
    """Return the result of the run in numbers; empty without a pick."""
    by_model = {scores.model: scores for scores in report.test}
    names = [name for name in (report.selection.pick, "vanilla", "theta_0") if name in by_model]
    return [
        Headline(
            title,
            tuple((name, cells(by_model[name])[0 if axis == "domain" else len(COLUMNS) - 1]) for name in names),
            tuple(
                (one.against, difference_text(asdict(one)), verdict(one))
                for one in report.differences
                if one.axis == axis and one.against in names
            ),
        )
        for axis, title in AXES
        if names
    ]


def looks_row(report: ReportData, split: str) -> list[str]:
    """Return how many models were scored on the set behind each column; [] where an older version scored."""
    return looks_cells([model for model in results_json(report)["models"] if model["split"] == split])


def cross_document(report: ReportData) -> str:
    """Return the scores on the questions over two documents as a sentence; "" where there are none."""
    found = [(one.model, suite) for one in report.test for suite in one.suites if suite.suite == "cross_document"]
    if not found:
        return ""
    each = ", ".join(f"{model} {points_text(asdict(suite))}" for model, suite in found)
    return f"Apart from these, {found[0][1].count} questions that need two documents, in no other score: {each}."


def further_suites(report: ReportData) -> list[str]:
    """Return a sentence for each suite that is shown beside the scores: the references and the pick."""
    shown = report.test or tuple(one for one in report.validation if one.model in DESCRIPTIONS)
    names = dict.fromkeys(one.suite for scores in shown for one in scores.suites if one.suite not in COUNTED)
    lines = []
    for name in names:
        found = [(scores.model, scores.suite(name)) for scores in shown]
        each = ", ".join(f"{model} {points_text(asdict(suite))}" for model, suite in found)
        facts = [*_look_facts(report, name, shown[0].split), *_grading_facts(report, name, [one for _, one in found])]
        about = ", ".join([f"{found[0][1].count} items", *facts])
        lines.append(f"{name}, {about}: {each}.")
    return lines


def _look_facts(report: ReportData, suite: str, split: str) -> list[str]:
    looks = [one for one in report.looks if (one.suite, one.split) == (suite, split)]
    if not looks:
        return []
    return ["private"] * looks[0].private + [f"{max(one.looks for one in looks)} models scored on them so far"]


def _grading_facts(report: ReportData, suite: str, scores: Sequence[SuiteScore]) -> list[str]:
    """Return how far attacks fool a suite's own verifier, and the largest share of replies of a model cut off."""
    audits = [one for one in report.verifiers if one.verifier.endswith(f" of {suite}")]
    facts = [f"attacks that {one.verifier} scores above 0 {attack_success(one.attacks)}" for one in audits]
    cut = max(one.details.get("truncated_share", 0.0) for one in scores)
    return [*facts, f"at most {_share(cut)} of a model's replies cut off"] if cut else facts


def verdict(difference: PairedDifference) -> str:
    """Say what a paired interval allows to say."""
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "no clear difference"


def funnel_rows(funnel: Sequence[FunnelStep]) -> list[dict[str, Any]]:
    """Return the steps with the share kept in [0, 1] and each outcome's and reason's share of what came in."""
    return [
        {
            "step": step.step,
            "unit": step.unit,
            "in": step.in_,
            "kept": step.kept,
            "share": step.kept / step.in_ if step.in_ else 1.0,
            "outcomes": [
                (step.outcomes.get(name, 0), step.outcomes.get(name, 0) / max(1, step.in_)) for name in OUTCOMES
            ],
            "dropped": [(reason, count, count / step.in_) for reason, count in step.dropped.items() if count],
        }
        for step in funnel
    ]


def selection_counts(selection: Selection) -> list[tuple[str, int]]:
    """Return how many candidates are left at the start and after each of the four steps."""
    fates = Counter(_fate(verdict.domain_floor) for verdict in selection.verdicts)
    distinct, evaluated = len(selection.verdicts) - fates["duplicate"], fates[""]
    left = [sum(verdict.kept_until > step for verdict in selection.verdicts) for step in range(len(STEPS))]
    return [
        ("in the grid", len(selection.verdicts)),
        ("with weights of their own", distinct),
        *([("evaluated, the others pruned", evaluated)] if fates["pruned"] else []),
        *zip(STEPS, left, strict=True),
    ]


def stability_text(selection: Selection) -> str:
    """Say how often which candidate wins when the validation items are drawn anew, those that ever do first."""
    stability = selection.stability
    winners = sorted(((share, name) for name, share in stability.wins.items() if share), reverse=True)
    shares = [f"{name} in {_share(share)}" for share, name in winners]
    none = f"none feasible in {_share(stability.none_feasible)}"
    return (
        f"How sure this is: over {stability.resamples:,} resamples of the validation items, the same for all models, "
        f"the rule picks {', '.join([*shares, none])}."
    )


def pruning_text(report: ReportData) -> str:
    """Say what evaluating fewer candidates, chosen by bits per byte, would have come to."""
    pick, losses = report.selection.pick, report.pruning
    if not pick or not losses:
        return "There is no pick to lose by pruning."
    enough = next(one.kept for one in losses if all(later.pick == pick for later in losses[one.kept - 1 :]))
    least = next(one.kept for one in losses if one.pick == pick)
    text = f"Had only the best {least} of {len(losses)} been evaluated, the rule would have picked {pick} too"
    return f"{text}." if least == enough else f"{text}, and again from the best {enough} on."


def pruning_rows(report: ReportData) -> list[tuple[int, str, str, str]]:
    """Return (kept, pick, domain lost, general lost) as text, one row a number of candidates kept."""
    return [
        (one.kept, one.pick or "none feasible", _points_lost(one.domain_lost), _points_lost(one.general_lost))
        for one in report.pruning
    ]


def recipe_table(report: ReportData) -> list[list[str]]:
    """Return the table of recipes as text, as commands print it too."""
    return recipe_lines(results_json(report))


def recipe_facts(report: ReportData) -> list[tuple[str, str]]:
    """Return for each recipe that has facts of its own, such as a realised share, these in one line."""
    return [
        (row.name, ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in row.facts.items()))
        for row in report.recipes
        if row.facts
    ]


def reached(selection: Selection) -> dict[str, str]:
    """Return by candidate how far it came."""
    words = ("below the domain floor", "below the general floor", "dominated", "on the front", "the pick")
    return {one.candidate: _fate(one.domain_floor) or words[one.kept_until] for one in selection.verdicts}


def judging_rows(scores: Sequence[ModelScores]) -> list[tuple[str, str, int, list[str]]]:
    """Return (model, split, replies without a score, shares of DETAILS as text) of each model."""
    return [
        (
            one.model,
            one.split,
            sum(suite.unscored for suite in one.suites),
            [_share(one.suite(suite).details.get(detail)) for suite, detail, _ in DETAILS],
        )
        for one in scores
        if not one.duplicate_of
    ]


def agreement_cells(found: Agreement) -> list[str]:
    """Return the values of AGREEMENT as text: rates are shares in [0, 1], biases in points."""
    return [_estimate_text(getattr(found, name)) for _, name in AGREEMENT]


def audit_cells(audit: VerifierAudit) -> list[str]:
    """Return the columns of AUDIT as text."""
    shares = (attack_success(audit.attacks), attack_success(audit.attacks, full=True))
    return [str(share) for share in (*shares, precision(audit), recall(audit), exactness(audit))]


def attack_rows(audits: Sequence[VerifierAudit]) -> list[tuple[str, list[str]]]:
    """Return what each kind of attack reached with each judge."""
    kinds = dict.fromkeys(one.kind for audit in audits for one in audit.attacks)
    found = [{one.kind: one for one in audit.attacks} for audit in audits]
    return [(kind, [_attack_text(by_kind.get(kind)) for by_kind in found]) for kind in kinds]


def who_teaches(run_file: RunFile) -> str:
    """Name the teacher, and say when it is no LLM."""
    teacher = run_file.qa_build.teacher
    return (
        f"LLM {teacher.model} ({teacher.name})" if isinstance(teacher, Endpoint) else f"{teacher}, rule-based, no LLM"
    )


def who_judges(run_file: RunFile) -> list[str]:
    """Name the judges in the order of their calls, and say which is no LLM."""
    return [
        f"LLM {judge.model} ({judge.name})" if isinstance(judge, Endpoint) else f"{judge}, rule-based, no LLM"
        for judge in run_file.evaluate.judges
    ]


def provenance(report: ReportData) -> list[tuple[str, str]]:
    """Return what identifies this run and everything it is made of."""
    file = report.run_file
    facts = [
        ("Run", report.run_id),
        ("Run file SHA-256", file.digest),
        ("Seed", str(file.run.seed)),
        ("Code version", f"iar {__version__}"),
        ("Base model", f"{file.model.source}, revision {file.model.revision}"),
        ("Dataset SHA-256", str(report.dataset.get("digest", ""))),
        ("Validation questions SHA-256", report.selection.dataset_digest),
        *((f"Weights of {model}, SHA-256", digest) for model, digest in report.checkpoints.items()),
        *((f"Code of {stage.task}, SHA-256", stage.code) for stage in report.stages),
    ]
    return [(name, value) for name, value in facts if value]


def frontier_text(report: ReportData) -> str:
    """Describe the frontier figure for those who do not see it."""
    shown = [one for one in report.validation if not one.duplicate_of]
    places = "; ".join(f"{one.model} {one.domain:.1f} and {one.general:.1f}" for one in shown)
    pick = f"The pick is {report.selection.pick}" if report.selection.pick else "No candidate is feasible"
    return f"Domain against general points on validation. {pick}. Domain and general of each model: {places}."


def losses_text(report: ReportData) -> str:
    """Describe the loss curves for those who do not see them."""
    curves = [
        f"{training.model} from {training.losses[0]:.2f} to {training.losses[-1]:.2f} in {len(training.losses)} steps"
        for training in report.trainings
        if training.losses
    ]
    return f"Training loss: {'; '.join(curves)}."


def question_counts(report: ReportData) -> str:
    """Return the number of questions of each split, without opening the test."""
    known = Counter(
        {split: report.dataset[split] for split in ("train", "validation", "test") if split in report.dataset}
    )
    return ", ".join(f"{count} {split}" for split, count in known.items())


def _suite_cell(suite: SuiteScore) -> Cell:
    note = f"{suite.unscored} of {suite.count} unscored" if suite.unscored else ""
    return Cell(suite.points, suite.low, suite.high, note)


def _fate(reason: str) -> str:
    """Return why a candidate never came to the rule, "" where it did."""
    return next((word for word in ("duplicate", "pruned") if reason.startswith((f"{word} of", f"{word}:"))), "")


def _points_lost(points: float | None) -> str:
    return "" if points is None else f"{points:+.1f}"


def _estimate_text(found: Estimate) -> str:
    if found.value is None:
        return "–"
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.2f}{interval}"


def _attack_text(found: AttackResult | None) -> str:
    return "–" if found is None else f"{found.fooled} ({found.full}) of {found.asked - found.failed}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
