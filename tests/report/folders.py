"""A finished run as folders: what the stages leave, made up from records, without a model."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iar.config import FilterSection, RunFile
from iar.methods.bootstrap import mean_interval, mean_of_means_interval
from iar.methods.contamination import Hit
from iar.methods.filter_report import report as scorer_report
from iar.methods.merge_grid import grid
from iar.methods.paired import paired
from iar.methods.pick_stability import pick_stability
from iar.methods.pruning import pruning_losses
from iar.methods.scorers import NEAR_DUPLICATE, SCORERS
from iar.methods.selection import Rule, select
from iar.records import (
    AttackResult,
    Baseline,
    BitsPerByte,
    CalibrationResult,
    Candidate,
    EvalCheck,
    FunnelStep,
    ItemScore,
    LayerFacts,
    ModelScores,
    Outcome,
    QAPair,
    Reply,
    Selection,
    SuiteScore,
    TestReading,
    VerifierAudit,
    Vote,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.decontamination import Decontamination, write_checks
from iar.services.judges import ArchivedVote, write_votes
from iar.services.verifiers import VERIFIERS
from iar.services.workspace import Manifest

RUN_FILE = RunFile.model_validate({"run": {"name": "test"}, "documents": {"path": "documents"}})
SUITES = ("domain", "ifeval", "mmlu", "msbench")
JUDGES = RUN_FILE.evaluate.judges
QUESTIONS = 60
NASTY = '<script>alert("x")</script>'
# domain, general: what a model gets right on average
REFERENCES = {"theta_0": (0.04, 0.52), "vanilla": (0.22, 0.30), "theta_IA": (0.40, 0.36)}
BASELINES = {"replay": (0.20, 0.45), "fapm": (0.12, 0.50)}
STRENGTH = {"slerp": 0.9, "task_arithmetic": 0.85, "ties": 0.8, "dare": 1.15}


@dataclass(frozen=True)
class Made:
    """The folders by role, and the selection in them."""

    inputs: dict[str, Path]
    selection: Selection


def make_run(root: Path, feasible: bool = True, nasty: str = NASTY, votes: bool = True) -> Made:
    """Write a whole run below `root`, its candidates in two shards; without a feasible candidate no test."""
    roles = ("data", "base", "inject", "tuned", "vanilla", "references", "selector", "locked_test")
    inputs = {role: root / role for role in roles}
    for number in (1, 2):
        inputs |= {f"{kind}_{number}": root / f"{kind}_{number}" for kind in ("candidates", "scores")}
    for folder in inputs.values():
        folder.mkdir(parents=True)
    pairs = write_data(inputs["data"], nasty)
    for role, objective in (("inject", "rewrite"), ("tuned", "answer"), ("vanilla", "answer")):
        write_training(inputs[role], objective, nasty)

    grades = {**REFERENCES, **{one.id: _merged(one.operator, one.value, feasible) for one in _candidates()}}
    validation = {"references": list(REFERENCES), "scores_1": [], "scores_2": []}
    for place, one in enumerate(_candidates()):
        validation[f"scores_{place % 2 + 1}"].append(one.id)
    scores = {
        role: [write_model(inputs[role], name, "validation", grades[name], pairs, nasty, votes) for name in names]
        for role, names in validation.items()
    }
    for role, made in scores.items():
        write_records(inputs[role] / "scores.jsonl", made)
        write_records(inputs[role] / VERIFIERS, audits(nasty))
        bits = [BitsPerByte(s.model, s.checkpoint_digest, 2 - s.domain / 50, 2 - s.general / 90, 9, 9) for s in made]
        injected = [BitsPerByte("theta_I", "i" * 64, 0.9, 1.9, 9, 9)] if role == "references" else []
        write_records(inputs[role] / "bpb.jsonl", [*bits, *injected])
    for number in (1, 2):
        write_records(inputs[f"candidates_{number}"] / "candidates.jsonl", _candidates()[number - 1 :: 2])
        for one in _candidates()[number - 1 :: 2]:
            (inputs[f"candidates_{number}"] / one.id).mkdir()
            write_records(inputs[f"candidates_{number}"] / one.id / "layers.jsonl", _layers(one.id, one.value))
    selection = write_selection(inputs["selector"], [s for made in scores.values() for s in made])
    write_records(inputs["locked_test"] / "questions.jsonl", pairs)
    write_test(inputs["locked_test"], selection, grades, pairs, nasty, votes)
    for place, (role, folder) in enumerate(inputs.items()):
        manifest = Manifest(role, role, "k", {}, f"code-{role}", float(place), 61.4 * place, (), Outcome({}, ""))
        write_json(folder / "manifest.json", to_json(manifest))
    return Made(inputs, selection)


def audits(nasty: str) -> list[VerifierAudit]:
    """Return what the three rules made of attacks; the second fell for a few of one kind."""
    calibration = (CalibrationResult("number", answers=50, failed=0, exact=40, right=25, credited=22, both=20),)
    return [
        VerifierAudit(
            judge,
            "1",
            "a" * 64,
            (AttackResult("empty", 100, 0, 0, 0), AttackResult(f"praise {nasty}", 100, 0, int(place == 1), 0)),
            calibration,
        )
        for place, judge in enumerate(JUDGES)
    ]


def add_baselines(made: Made, nasty: str = NASTY) -> None:
    """Write two baselines into a run, evaluated on both splits: one was trained, one pruned without training."""
    folders = made.inputs
    root = folders["data"].parent
    pairs = list(read_records(folders["locked_test"] / "questions.jsonl", QAPair))
    folders["baseline_scores"] = root / "baseline_scores"
    folders["baseline_scores"].mkdir()
    scores = {"validation": [], "test": list(read_records(folders["locked_test"] / "scores.jsonl", ModelScores))}
    for number, (name, grades) in enumerate(BASELINES.items(), 1):
        folder = folders[f"baselines_{number}"] = root / f"baselines_{number}"
        folder.mkdir()
        if name == "replay":
            write_training(folder, "replay", nasty, steps=30)
        facts = {"replay_share": 0.1034} if name == "replay" else {"changed_share": 0.1}
        write_json(folder / "baseline.json", to_json(Baseline(name, 99_000, 45_000 * number, facts)))
        places = {"validation": folders["baseline_scores"], "test": folders["locked_test"]}
        for split, place in places.items():
            if split == "validation" or made.selection.pick:
                scores[split].append(write_model(place, name, split, grades, pairs, nasty, votes=True))
    write_records(folders["baseline_scores"] / "scores.jsonl", scores["validation"])
    write_records(folders["locked_test"] / "scores.jsonl", scores["test"])


def write_data(folder: Path, nasty: str) -> list[QAPair]:
    """Write the funnel and the dataset record; return the test questions."""
    pairs = [
        QAPair(
            id=f"q{n}", document_id="d1", chunk_id="c1", split="test", question_type="fact_extraction",
            question=f"Who lit lamp {n} of Velm? {nasty}", answer=f"Lamp {n} was lit by Tora Lind.",
            key=f"Tora Lind {nasty}", aliases=("Lind",), anchor="Lind", teacher="offline",
        )
        for n in range(QUESTIONS)
    ]  # fmt: skip
    funnel = [
        FunnelStep("documents", "document", 34, 32, {"empty": 1, "no text layer": 1}),
        FunnelStep("questions", "question", 900, 640, {"not self-contained": 210, f"ill-formed {nasty}": 50}),
        FunnelStep("deduplicated", "question", 640, 610, {"duplicate": 30}),
    ]
    write_json(folder / "funnel.json", [to_json(step) for step in funnel])
    names = ("validation", "test", "ifeval", "mmlu", "msbench")
    checks = tuple(
        EvalCheck("questions", name, "e" * 64, 60, 60, 300, number, 2, "") for number, name in enumerate(names)
    )
    hit = Hit("q9", "mmlu", "m1", "8-gram", 0.75, f"Who lit the lamp? {nasty}", f"Who lit it? {nasty}")
    write_checks(folder, [Decontamination(checks, (hit,))])
    settings, words = FilterSection(), np.array([4, 60, 300, 900])
    dropped, parts = np.array([True, False, False, False]), np.zeros(4, np.int64)
    reports = [
        scorer_report(
            one,
            one.threshold(settings),
            words.astype(np.float32),
            dropped,
            ~dropped,
            words,
            parts,
            [nasty],
            parts,
            ["en"],
            seed=1,
        )
        for one in (*SCORERS, NEAR_DUPLICATE)
    ]
    write_json(folder / "filter.json", [to_json(one) for one in reports])
    write_json(
        folder / "dataset.json", {"digest": "d" * 64, "pairs": 610, "train": 300, "validation": 120, "test": 190}
    )
    return pairs


def write_training(folder: Path, objective: str, nasty: str, steps: int = 90) -> None:
    """Write the log of a training that learns, and its dataset card."""
    rows = [
        {"id": f"r{n}", "objective": objective, "masked": f"user: {nasty} {n}", "trained": "Velm & co."}
        for n in range(3)
    ]
    card = {
        "examples": 96, "rows": 240, "windowed_examples": 12, "windows": 156, "dropped": {}, "rendered": rows,
        "tokens": 48000, "target_tokens": 30000,
        "length_quantiles": {"0.0": 20, "0.25": 90, "0.5": 200, "0.75": 260, "0.95": 310, "1.0": 400},
        "objective_share": {objective: 1.0}, "template_sha256": "e" * 64,
    }  # fmt: skip
    write_json(folder / "card.json", card)
    noise = random.Random(folder.name)
    with (folder / "steps.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            loss = 2.6 / (1 + step / 18) + noise.uniform(-0.12, 0.12)
            facts = {"step": step, "steps": steps, "epoch": 1 + 3 * (step - 1) // steps, "loss": loss, "tokens": 1600}
            file.write(json.dumps(facts | {"target_tokens": 1000, "seconds": 4.2}) + "\n")
    (folder / "checkpoint").mkdir()
    write_json(folder / "checkpoint" / "checkpoint.json", {"digest": f"weights-{folder.name}"})


def write_model(
    out: Path, name: str, split: str, grades: tuple[float, float], pairs: list[QAPair], nasty: str, votes: bool
) -> ModelScores:
    """Write replies, votes and item scores of one model; return its scores."""
    folder = out / name
    folder.mkdir()
    chance = random.Random(f"{name} {split}")
    items = [
        ItemScore(name, suite, item_id, float(chance.random() < grades[suite != "domain"]), "")
        for suite in SUITES
        for item_id in ([pair.id for pair in pairs] if suite == "domain" else [f"{suite}-{n}" for n in range(50)])
    ]
    write_records(folder / "items.jsonl", items)
    text = f"A reply of {name} {nasty}"
    write_records(folder / "replies.jsonl", [Reply(item.item_id, text, 9, item.item_id == "q0") for item in items])
    if votes:
        write_votes(folder / "votes.parquet", list(_votes(name, items, chance)))
    return _scores(name, split, items)


def write_selection(folder: Path, scores: list[ModelScores]) -> Selection:
    """Let the rule decide, and write what the selector writes."""
    by_model = {score.model: score for score in scores}
    judged = [by_model[one.id] for one in _candidates() if not one.duplicate_of]
    ruling = select(judged, by_model["vanilla"], _candidates(), Rule(1.0))
    digest = f"digest-{ruling.pick}" if ruling.pick else ""
    items = {path.parent.name: _items(path.parent) for path in folder.parent.glob("[rs]*/*/items.jsonl")}
    values = {one.id: one.value for one in _candidates()}
    own = {one.model: items[one.model] for one in judged}
    stability = pick_stability(own, items["vanilla"], values, Rule(1.0), 200, 17)
    selection = Selection(
        ruling.pick, "the rule", 1.0, ruling.verdicts, "f" * 64, digest, "domain", {}, stability=stability
    )
    write_json(folder / "selection.json", to_json(selection))
    losses = pruning_losses(judged, by_model["vanilla"], _candidates(), Rule(1.0), ruling.front, ruling.pick)
    write_json(folder / "pruning.json", {"losses": [to_json(one) for one in losses]})
    write_json(folder / "frontier.json", [{"id": one.model, "on_front": one.model in ruling.front} for one in scores])
    return selection


def write_test(
    folder: Path,
    selection: Selection,
    grades: dict[str, tuple[float, float]],
    pairs: list[QAPair],
    nasty: str,
    votes: bool,
) -> None:
    """Write the locked test of the pick and the references; without a pick what the stage writes then."""
    names = [selection.pick, *REFERENCES] if selection.pick else []
    scores = [write_model(folder, name, "test", grades[name], pairs, nasty, votes) for name in names]
    write_records(folder / "scores.jsonl", scores)
    items = {name: _items(folder / name) for name in names}
    differences = [
        to_json(paired(axis, suites, items[selection.pick], items[name], 200, 17))
        for name in names[1:]
        for axis, suites in (("domain", ("domain",)), ("general", SUITES[1:]))
    ]
    write_json(folder / "paired.json", {"pick": selection.pick, "differences": differences})
    reading = TestReading(selection.pick, selection.candidate_digest, "decision", len(pairs), 0, (), 0)
    write_json(folder / "reading.json", to_json(reading))


def _items(folder: Path) -> list[ItemScore]:
    lines = (folder / "items.jsonl").read_text().splitlines()
    return [ItemScore(**json.loads(line)) for line in lines]


def _candidates() -> list[Candidate]:
    """The grid; SLERP 0.3 and Task Arithmetic 0.3 have come out as the same weights."""
    copy = {"task_arithmetic-w0.3": "slerp-t0.3"}
    return [
        Candidate(one.id, one.operator, one.parameter, one.value, 17, f"digest-{copy.get(one.id, one.id)}", 0.93,
                  one.value, 1 - one.value, copy.get(one.id, ""))
        for one in grid(RUN_FILE.recover, 17)
    ]  # fmt: skip


def _layers(name: str, value: float) -> list[LayerFacts]:
    """Three blocks and two kinds of tensor, moved the more the higher."""
    blocks = [LayerFacts(name, "block", group, 1000, 0.9, value, 1 - value) for group in ("outside", "0", "1", "2")]
    return blocks + [LayerFacts(name, "kind", kind, 2000, 0.9, value, 1 - value) for kind in ("mlp.up_proj", "norm")]


def _merged(operator: str, value: float, feasible: bool) -> tuple[float, float]:
    """The more of theta_IA, the more domain and the less general."""
    reach = STRENGTH[operator] * (0.35 + 0.65 * (1 - value if operator == "dare" else value))
    domain = 0.04 + 0.42 * reach if feasible else 0.02
    return domain, 0.56 - 0.18 * reach


def _scores(name: str, split: str, items: list[ItemScore]) -> ModelScores:
    points = {suite: [100 * (item.score or 0) for item in items if item.suite == suite] for suite in SUITES}
    details = {"strict_share": 0.2, "truncated_share": 0.05, "third_judge_rate": 0.1, "unparsed_share": 0.02}
    suites = tuple(
        SuiteScore(suite, *mean_interval(points[suite], 200, 17), len(points[suite]), int(suite == "msbench"), details)
        for suite in SUITES
    )
    general = mean_of_means_interval([points[suite] for suite in SUITES[1:]], 200, 17)
    digest = f"digest-{name}"
    copy = {one.id: one.duplicate_of for one in _candidates()}.get(name, "")
    return ModelScores(name, split, digest, suites, suites[0].points, *general, copy)


def _votes(name: str, items: list[ItemScore], chance: random.Random) -> Iterable[ArchivedVote]:
    for item in (one for one in items if one.suite in ("domain", "msbench")):
        disputed = chance.random() < 0.2
        for place, judge in enumerate(JUDGES[: 3 if disputed else 2]):
            score = 0.5 if disputed and place == 1 else item.score
            vote = Vote(name, item.suite, item.item_id, str(judge), "1", 1, score, "", "")
            yield ArchivedVote(vote, "hash")
