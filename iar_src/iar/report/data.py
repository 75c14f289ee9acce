"""What a run came to, read from the artifacts of its stages: one record behind page, plots and `results.json`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from iar.config import Endpoint, RunFile
from iar.methods.contamination import Hit
from iar.methods.filter_report import ScorerReport
from iar.methods.merge_grid import grid
from iar.methods.paired import PairedDifference
from iar.methods.selection import mark_duplicates
from iar.methods.verification import audit_json
from iar.records import (
    BitsPerByte,
    Candidate,
    EvalCheck,
    FunnelStep,
    LayerFacts,
    Look,
    ModelScores,
    OracleWatch,
    PruningLoss,
    Regression,
    Selection,
    SuiteScore,
    TestReading,
    VerifierAudit,
    from_json,
    read_records,
    to_json,
)
from iar.report.diagnostics import Diagnostics, read_diagnostics
from iar.report.evidence import PanelFacts, Sample, panel_facts, read_layers, samples
from iar.report.oracle import read_watches
from iar.report.recipes import RecipeRow, recipe_rows, rows_json
from iar.report.rolling import FROM_THETA_0, Rolling, read_rolling, rolling_json
from iar.services.baselines import ROLE as BASELINE
from iar.services.baselines import baseline_folders
from iar.services.bpb import read_all_bpb
from iar.services.checkpoints import read_json
from iar.services.decontamination import read_checks, read_hits, unchecked
from iar.services.evaluations import GENERAL, OWN
from iar.services.judges import judge_names
from iar.services.looks import read_looks
from iar.services.non_regression import read_regressions
from iar.services.suite_verifiers import read_suite_audits
from iar.services.verifiers import OWN_ATTACKS, read_audits
from iar.services.workspace import MANIFEST, STEPS, read_manifest

SUITES = ("domain", "ifeval", "mmlu", "msbench")
HITS_SHOWN = 20
TRAININGS = (("inject", "theta_I"), ("tuned", "theta_IA"), ("vanilla", "vanilla"))


@dataclass(frozen=True)
class Training:
    """One training stage: the model it made, its dataset card, and one entry an optimizer step."""

    model: str
    card: dict[str, Any]
    losses: tuple[float, ...]
    epochs: tuple[int, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class StageTime:
    """What a finished artifact cost: wall time of the last try, and the digest of the code that made it."""

    task: str
    seconds: float
    code: str


@dataclass(frozen=True)
class ReportData:
    """A whole run. `test` and `samples` are empty where no candidate was feasible: the test was not read.

    `bpb` has the models in the order of `validation`, pruned candidates last; `pruning` is as in `pruning.json`.
    `taken_before` says which other models took the test before, "" where it was a first look; `looks` how often each
    set of questions had been looked at.
    `recipes` and `baseline_trainings` are empty where no baseline was asked for, `oracle` where nothing was watched,
    `rolling` in a run from theta_0. `own_attacks`: the judges before attacks around wrong answers of the pick itself.
    """

    run_id: str
    run_file: RunFile
    selection: Selection
    front: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    layers: tuple[LayerFacts, ...]
    validation: tuple[ModelScores, ...]
    bpb: tuple[BitsPerByte, ...]
    pruning: tuple[PruningLoss, ...]
    test: tuple[ModelScores, ...]
    taken_before: str
    looks: tuple[Look, ...]
    regressions: tuple[Regression, ...]
    differences: tuple[PairedDifference, ...]
    samples: tuple[Sample, ...]
    verifiers: tuple[VerifierAudit, ...]
    panel: tuple[PanelFacts, ...]
    funnel: tuple[FunnelStep, ...]
    checks: tuple[EvalCheck, ...]
    hits: tuple[Hit, ...]
    scorers: tuple[ScorerReport, ...]
    dataset: dict[str, Any]
    trainings: tuple[Training, ...]
    oracle: tuple[OracleWatch, ...]
    checkpoints: dict[str, str]
    stages: tuple[StageTime, ...]
    baselines: tuple[str, ...]
    recipes: tuple[RecipeRow, ...]
    baseline_trainings: tuple[Training, ...]
    diagnostics: Diagnostics
    rolling: Rolling = FROM_THETA_0
    own_attacks: tuple[VerifierAudit, ...] = ()


def collect(inputs: dict[str, Path], run_file: RunFile, run_id: str) -> ReportData:
    """Read the artifacts by role; the test questions only where the selector picked and the test was taken."""
    selection = from_json(Selection, _json(inputs["selector"] / "selection.json"))
    candidates = _candidates(inputs, run_file)
    beside = [inputs["baseline_scores"]] if "baseline_scores" in inputs else []
    validated = [inputs["references"], *beside, *_shards(inputs, "scores_")]
    validation = _in_order(validated, candidates)
    tested = [inputs["locked_test"]] if selection.pick and "locked_test" in inputs else []
    test = tuple(score for folder in tested for score in read_records(folder / "scores.jsonl", ModelScores))
    baselines = [(baseline.recipe, folder) for baseline, folder in baseline_folders(inputs)]
    return ReportData(
        run_id=run_id,
        run_file=run_file,
        selection=selection,
        front=tuple(point["id"] for point in _json(inputs["selector"] / "frontier.json") if point["on_front"]),
        candidates=candidates,
        layers=tuple(read_layers(_shards(inputs, "candidates_"), candidates)),
        validation=validation,
        bpb=_bpb_in_order(validated, validation),
        pruning=tuple(from_json(PruningLoss, one) for one in _json(inputs["selector"] / "pruning.json")["losses"]),
        test=test,
        taken_before="; ".join(_taken_before(tested)),
        looks=tuple(read_looks([*tested, *validated])),
        regressions=tuple(one for folder in tested for one in read_regressions(folder)),
        differences=tuple(_differences(tested)),
        samples=samples(tested[0], selection.pick) if test and not run_file.evaluate.private_test else (),
        verifiers=(*read_audits(inputs["references"]), *read_suite_audits(inputs["references"])),
        panel=panel_facts(
            {"validation": validated, "test": tested},
            judge_names(run_file),
            run_file.evaluate.resamples,
            run_file.run.seed,
        ),
        funnel=tuple(from_json(FunnelStep, step) for step in _json(inputs["data"] / "funnel.json")),
        checks=tuple(check for folder in _checked(inputs) for check in read_checks(folder)),
        hits=tuple(hit for folder in _checked(inputs) for hit in islice(read_hits(folder), HITS_SHOWN)),
        scorers=_scorers(inputs["data"] / "filter.json"),
        dataset=read_json(inputs["data"] / "dataset.json"),
        trainings=tuple(_training(inputs[role], model) for role, model in TRAININGS),
        oracle=tuple(read_watches(inputs[role] for role, _ in TRAININGS)),
        checkpoints=_checkpoints(validation, inputs["inject"]),
        stages=tuple(_stage_times(inputs.values())),
        baselines=tuple(recipe for recipe, _ in baselines),
        recipes=recipe_rows(inputs, test or validation, tested if test else validated, selection.pick, run_file),
        baseline_trainings=tuple(
            _training(folder, recipe) for recipe, folder in baselines if (folder / STEPS).is_file()
        ),
        diagnostics=read_diagnostics(tested, selection.pick),
        rolling=read_rolling(inputs, _shards(inputs, "candidates_"), tested if test else validated, test or validation),
        own_attacks=tuple(one for folder in tested for one in read_audits(folder, OWN_ATTACKS)),
    )


def results_json(report: ReportData) -> dict[str, Any]:
    """Return the result tables as JSON data, for `results.json`, `iar status --json` and scripts."""
    further: dict[str, Any] = {"recipes": rows_json(report.recipes)} if report.recipes else {}
    further |= {"built_on": rolling_json(report.rolling)} if report.rolling.sets else {}
    found = report.diagnostics
    return (
        further
        | {
            "diagnostics": {"models": dict(found.models), "breakdowns": dict(found.breakdowns)}
            | ({"bits_beside": [to_json(one) for one in found.beside]} if found.beside else {}),
            "run_id": report.run_id,
            "pick": report.selection.pick,
            "preferred": report.selection.wish,
            "taken_before": report.taken_before,
            "seed": report.run_file.run.seed,
            "models": [_model_json(scores, report.looks) for scores in (*report.test, *report.validation)],
            "paired": _paired_json(report.differences),
            "selection": to_json(report.selection),
            "bits_per_byte": [to_json(one) for one in report.bpb],
            "pruning": [to_json(one) for one in report.pruning],
            "offline": offline_parts(report.run_file),
            "verifiers": [audit_json(one) for one in report.verifiers],
            "unchecked": unchecked_suites(report),
        }
        | _oracle_json(report.oracle)
        | _regressions_json(report.regressions)
        | ({"own_attacks": [audit_json(one) for one in report.own_attacks]} if report.own_attacks else {})
    )


def _oracle_json(watched: Sequence[OracleWatch]) -> dict[str, Any]:
    """Return what the oracle found, by training, and its warnings; {} where no training was watched."""
    warnings = [one.warning for one in watched if one.warning]
    return {"oracle": [to_json(one) for one in watched], "diverged": warnings} if watched else {}


def _regressions_json(found: Sequence[Regression]) -> dict[str, Any]:
    """Return the pick beside the model before it; {} where no set must not get worse."""
    return (
        {"non_regression": [to_json(one) | {"text": one.text, "regressed": one.regressed} for one in found]}
        if found
        else {}
    )


def unchecked_suites(report: ReportData) -> dict[str, str]:
    """Return the evaluations behind a score that training data was not checked against, each with the reason."""
    asked = {suite.suite for scores in (*report.test, *report.validation) for suite in scores.suites}
    found = unchecked(report.checks, [*OWN, *GENERAL])
    return {name: why for name, why in found.items() if name in asked.union(OWN, GENERAL)}


def offline_parts(run_file: RunFile) -> list[str]:
    """Return what is rule-based instead of an LLM: `teacher offline`, `judge rule:exact`, ..."""
    teacher = run_file.qa_build.teacher
    parts = [] if isinstance(teacher, Endpoint) else [f"teacher {teacher}"]
    return parts + [f"judge {judge}" for judge in run_file.evaluate.judges if not isinstance(judge, Endpoint)]


def _model_json(scores: ModelScores, looks: Sequence[Look]) -> dict[str, Any]:
    looked = {
        one.suite: one for one in looks if (one.model, one.split) == (scores.duplicate_of or scores.model, scores.split)
    }
    suites = {suite.suite: _suite_json(suite) | _look_json(looked.get(suite.suite)) for suite in scores.suites}
    general = {"points": scores.general, "low": scores.general_low, "high": scores.general_high}
    identity = {"id": scores.model, "split": scores.split, "checkpoint_digest": scores.checkpoint_digest}
    return identity | suites | {"general": general, "duplicate_of": scores.duplicate_of}


def _suite_json(suite: SuiteScore) -> dict[str, Any]:
    return {name: value for name, value in to_json(suite).items() if name != "suite"}


def _look_json(look: Look | None) -> dict[str, Any]:
    """Return which set was asked and how many models were scored on it by then; {} where an older version scored."""
    return {"set": look.set_digest, "private": look.private, "looks": look.looks} if look else {}


def _paired_json(differences: Iterable[PairedDifference]) -> dict[str, Any]:
    """Return the differences pick minus model, by model and axis."""
    paired: dict[str, dict[str, Any]] = {}
    for one in differences:
        numbers = {name: value for name, value in asdict(one).items() if name in ("points", "low", "high", "items")}
        paired.setdefault(one.against, {})[one.axis] = numbers
    return paired


def _scorers(path: Path) -> tuple[ScorerReport, ...]:
    """Read what the file filter did; nothing where an older version built the questions."""
    return tuple(from_json(ScorerReport, one) for one in _json(path)) if path.is_file() else ()


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _checked(inputs: dict[str, Path]) -> list[Path]:
    """Return the folders whose training data was checked: of the questions, then those of baselines."""
    return [folder for role, folder in inputs.items() if role == "data" or role.startswith(BASELINE)]


def _shards(inputs: dict[str, Path], prefix: str) -> list[Path]:
    """Return the folders of all shards of a role such as `scores_1`, `scores_2`."""
    return [folder for role, folder in inputs.items() if role.replace("-", "_").startswith(prefix)]


def _candidates(inputs: dict[str, Path], run_file: RunFile) -> tuple[Candidate, ...]:
    """Return the candidates of all shards in grid order, equal weights marked across shards."""
    order = {recipe.id: place for place, recipe in enumerate(grid(run_file.recover, run_file.run.seed))}
    found = [
        candidate
        for folder in _shards(inputs, "candidates_")
        for candidate in read_records(folder / "candidates.jsonl", Candidate)
    ]
    return tuple(mark_duplicates(sorted(found, key=lambda candidate: order.get(candidate.id, len(order)))))


def _in_order(folders: Iterable[Path], candidates: Sequence[Candidate]) -> tuple[ModelScores, ...]:
    """Return all scores: references and baselines as they come, then the candidates in grid order.

    A candidate that is the same model as one of another task has its scores.
    """
    scores = [score for folder in folders for score in read_records(folder / "scores.jsonl", ModelScores)]
    known = {score.model: score for score in scores}
    scores += [
        replace(known[one.duplicate_of], model=one.id, duplicate_of=one.duplicate_of)
        for one in candidates
        if one.duplicate_of in known and one.id not in known
    ]
    order = {candidate.id: place for place, candidate in enumerate(candidates)}
    return tuple(sorted(scores, key=lambda score: order.get(score.model, -1)))


def _differences(tested: Iterable[Path]) -> Iterator[PairedDifference]:
    for folder in tested:
        for difference in _json(folder / "paired.json")["differences"]:
            yield from_json(PairedDifference, difference)


def _bpb_in_order(folders: Iterable[Path], validation: Sequence[ModelScores]) -> tuple[BitsPerByte, ...]:
    place: dict[str, float] = {scores.model: number for number, scores in enumerate(validation)}
    place["theta_I"] = place.get("theta_IA", len(place)) - 0.5  # scored by nobody, and measured on the way there
    return tuple(sorted(read_all_bpb(folders), key=lambda one: place.get(one.model, len(place))))


def _taken_before(tested: Iterable[Path]) -> Iterator[str]:
    for folder in tested:
        yield from_json(TestReading, _json(folder / "reading.json")).mark


def _training(folder: Path, model: str) -> Training:
    lines = (folder / STEPS).read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    return Training(
        model=model,
        card=_json(folder / "card.json"),
        losses=tuple(float(step["loss"]) for step in steps),
        epochs=tuple(int(step["epoch"]) for step in steps),
        tokens=int(sum(step["tokens"] for step in steps)),
        seconds=float(sum(step["seconds"] for step in steps)),
    )


def _checkpoints(validation: Iterable[ModelScores], inject: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of theta_I and of every model that was evaluated."""
    injected = read_json(inject / "checkpoint" / "checkpoint.json").get("digest", "")
    return {"theta_I": str(injected)} | {scores.model: scores.checkpoint_digest for scores in validation}


def _stage_times(folders: Iterable[Path]) -> Iterator[StageTime]:
    manifests = [read_manifest(folder) for folder in folders if (folder / MANIFEST).is_file()]
    for manifest in sorted(manifests, key=lambda manifest: manifest.started):
        yield StageTime(manifest.task, manifest.seconds, manifest.code)
