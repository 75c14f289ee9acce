"""Three document sets, one on top of the other, through the whole pipeline on a two-layer model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from iar.cli import call
from iar.config import RunFile
from iar.errors import ExitCode, UserError
from iar.records import DeltaFacts, EarlierSet, ModelScores, QAPair, Reply, RetainedPair, read_records
from iar.services.checkpoints import recorded_digest
from iar.services.doctor_earlier import check_earlier
from iar.services.earlier_runs import named_run
from iar.services.linking import link_tree
from iar.services.rebuild import plan
from iar.services.registry import Registry
from iar.services.retraction import restore, retract
from iar.services.run_files import load_run_file
from iar.services.runs import read_status
from iar.services.test_lock import READ_TEST
from iar.services.workspace import Context, Ref, Workspace
from iar.stages import earlier_run, judge_eval
from tests.finished_run import REPOSITORY, finish, tiny_run_file, write_documents
from tests.tiny_model import make_tiny_model

LATER = (
    (
        ("Gil Ostrander", "bell founder", "Quay Hill", 1702, "the Night Bell"),
        ("Hanne Uvall", "beekeeper", "Lower Marsh", 1719, "the Honey Ledger"),
        ("Ivo Prenter", "bridge warden", "Two Fords", 1733, "the Rope Gauge"),
        ("Jora Wex", "dyer", "Cold Spring", 1748, "the Blue Book"),
        ("Kell Amble", "lamplighter", "Ropewalk", 1755, "the Amber Lens"),
        ("Lise Torve", "cooper", "Barrel Row", 1761, "the Oak Measure"),
    ),
    (
        ("Mads Erren", "falconer", "High Rook", 1611, "the Feather Roll"),
        ("Nia Callow", "saddler", "Horse Fair", 1624, "the Long Stirrup"),
        ("Odo Brask", "miller", "Weir End", 1637, "the Grain Clock"),
        ("Pia Sundling", "weaver", "Loom Street", 1645, "the Linen Chart"),
        ("Quin Harrow", "mason", "Chalk Pit", 1652, "the Arch Table"),
        ("Runa Tillet", "salter", "Brine Bank", 1668, "the Crystal Scale"),
    ),
)


WEIGHTS = "recover.set_weights={newer: [0.25, 0.75]}"


class Rolled(NamedTuple):
    """Runs one on top of the other in one state folder: run files as they ran, and where they lie."""

    runs: list[RunFile]
    files: list[Path]

    def artifact(self, number: int, task: str) -> Path:
        """The folder that a task of a run made."""
        settings = self.runs[number]
        marker = Workspace.of(settings).run(settings.run_id) / "tasks" / f"{task}.json"
        return Ref.parse(json.loads(marker.read_text())["ref"]).path

    def status(self, number: int) -> dict[str, Any]:
        """What `iar status --json` shows of a run."""
        return read_status(Workspace.of(self.runs[number]).run(self.runs[number].run_id))

    def scores(self, number: int, task: str) -> dict[str, ModelScores]:
        """The scores of a task by model."""
        return {one.model: one for one in read_records(self.artifact(number, task) / "scores.jsonl", ModelScores)}

    def registry(self) -> Registry:
        return Registry.open(Workspace.of(self.runs[0]).registry_url(self.runs[0]))


def write_run(folder: Path, number: int, first: RunFile) -> Path:
    """Write run file number 1, 2, ... on other documents than the first."""
    sections = first.model_dump(mode="json")
    sections["run"]["name"] = f"tiny-{number}"
    sections["documents"]["path"] = str(write_documents(folder / f"documents-{number}", LATER[number - 1]))
    path = folder / f"run-{number}.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


pytestmark = pytest.mark.slow  # three runs


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Rolled:
    """A run from theta_0 and one on it, by the command line."""
    folder = tmp_path_factory.mktemp("rolled")
    sections = tiny_run_file(folder, tiny_model_folder).model_dump(mode="json")
    sections["baselines"]["recipes"] = []
    sections["recover"] = {
        "slerp_t": [0.3], "task_arithmetic_weight": [0.5], "ties_density": [0.5], "dare_drop": [], "same_within": 0.0,
        "keep": "all",
    }  # fmt: skip
    first = RunFile.model_validate(sections)
    files = [folder / "run-0.yaml", write_run(folder, 1, first)]
    files[0].write_text(yaml.safe_dump(first.model_dump(mode="json")))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        finish(first)
        ended = call(["run", str(files[1]), "--set", WEIGHTS, "--on", str(files[0])])
        assert ended in (ExitCode.DONE, ExitCode.NO_FEASIBLE_CANDIDATE)
    second = load_run_file(files[1], [WEIGHTS, f"run.on={named_run(first.run_id, first)}"])
    return Rolled([first, second], files)


@pytest.fixture(scope="module")
def chain(rolled: Rolled) -> Rolled:
    """A third run on the second."""
    path = write_run(rolled.files[0].parent, 2, rolled.runs[0])
    weights_of_three = "recover.set_weights={newer: [0.25, 0.25, 0.75]}"
    third = load_run_file(path, [weights_of_three, f"run.on={named_run('tiny-1-', rolled.runs[1])}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        finish(third)
    return Rolled([*rolled.runs, third], [*rolled.files, path])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_inject_and_vanilla_start_from_what_the_earlier_run_came_to(rolled: Rolled) -> None:
    start = recorded_digest(rolled.artifact(0, "align") / "checkpoint")
    assert rolled.runs[1].run.on == f"{rolled.runs[0].run_id}@{start}"
    registry = rolled.registry()
    for task, built_on in (("inject", True), ("vanilla", False)):
        made = recorded_digest(rolled.artifact(1, task) / "checkpoint")
        edges = {(role, source) for role, _, source in registry.inputs(made)}
        assert ("trained-from", start) in edges and (("built-on", start) in edges) == built_on
    datasets = [json.loads((rolled.artifact(n, "qa-build") / "dataset.json").read_text())["digest"] for n in range(2)]
    assert ("retains", datasets[0]) in {(role, source) for role, _, source in registry.inputs(datasets[1])}


def test_the_changes_of_all_sets_are_what_is_merged_with_theta_0(rolled: Rolled) -> None:
    base, first, second = (
        weights(rolled.artifact(1, "base-model")),
        weights(rolled.artifact(0, "align") / "checkpoint"),
        weights(rolled.artifact(1, "align") / "checkpoint"),
    )
    merged, newer = (
        weights(rolled.artifact(1, "merge-candidate-1") / name)
        for name in ("task_arithmetic-w0.5", "set_weights-newer")
    )
    squares = [0.0, 0.0]
    product = 0.0
    for name, theta_0 in base.items():
        delta_1, delta_2 = first[name] - theta_0, second[name] - first[name]
        torch.testing.assert_close(theta_0 + 0.5 * (delta_1 + delta_2), merged[name], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(theta_0 + 0.25 * delta_1 + 0.75 * delta_2, newer[name], rtol=1e-6, atol=1e-7)
        squares = [squares[0] + float(delta_1.square().sum()), squares[1] + float(delta_2.square().sum())]
        product += float((delta_1 * delta_2).sum())
    assert min(squares) > 0
    facts = list(read_records(rolled.artifact(1, "merge-candidate-1") / "deltas.jsonl", DeltaFacts))
    assert [one.group for one in facts] == ["model", "outside", "0", "1"]
    assert facts[0].norms == pytest.approx([square**0.5 for square in squares], rel=1e-4)
    assert facts[0].cosines == pytest.approx([product / (squares[0] * squares[1]) ** 0.5], abs=1e-4)
    assert facts[0].elements == sum(one.elements for one in facts[1:])


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """What a model replied, by item."""
    return ((one.item_id, one.text) for one in read_records(folder / "replies.jsonl", Reply))


def test_retention_is_the_score_on_the_earlier_validation_questions(rolled: Rolled, tmp_path: Path) -> None:
    asked = list(read_records(rolled.artifact(0, "qa-build") / "validation.jsonl", QAPair))
    kept = list(read_records(rolled.artifact(1, "qa-build") / "retention.jsonl", RetainedPair))
    assert [one.question for one in kept] == [one.question for one in asked]
    assert {one.run_id for one in kept} == {rolled.runs[0].run_id}
    # By hand: the models of the second run, put to the first run's own questions.
    roles = {"data": rolled.artifact(0, "qa-build"), "base": rolled.artifact(1, "base-model")}
    roles |= {"vanilla": rolled.artifact(1, "vanilla"), "tuned": rolled.artifact(1, "align")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        judge_eval.run(rolled.runs[1], roles, tmp_path / "out", Context.for_tests(tmp_path))
    by_hand = {one.model: one for one in read_records(tmp_path / "out" / "scores.jsonl", ModelScores)}
    found = rolled.scores(1, "judge-eval-references")
    assert list(found) == ["theta_0", "earlier", "vanilla", "theta_IA"]
    folders = (rolled.artifact(1, "judge-eval-references"), tmp_path / "out")
    for model in ("theta_0", "vanilla", "theta_IA"):
        assert found[model].suite("retention").points == by_hand[model].domain
        own, hand = (dict(texts(folder / model)) for folder in folders)
        assert {one.question: own[one.id] for one in kept} == {one.question: hand[one.id] for one in asked}
    assert found["earlier"].checkpoint_digest == recorded_digest(rolled.artifact(0, "align") / "checkpoint")
    assert found["earlier"].suite("retention").points == rolled.scores(0, "judge-eval-references")["theta_IA"].domain
    assert "retention" not in {suite.suite for suite in rolled.scores(0, "judge-eval-references")["theta_0"].suites}


def test_retention_stands_with_every_candidate_and_in_the_results(rolled: Rolled) -> None:
    assert all(
        "retention" in {suite.suite for suite in one.suites}
        for one in rolled.scores(1, "judge-eval-candidates-1").values()
    )
    selection = json.loads((rolled.artifact(1, "selector") / "selection.json").read_text())
    assert all("; retention " in one["domain_floor"] for one in selection["verdicts"])
    status = rolled.status(1)
    results, page = status["results"], Path(status["report"]).read_text(encoding="utf-8")
    assert all("retention" in model for model in results["models"])
    assert [one["run_id"] for one in results["built_on"]["sets"]] == [rolled.runs[0].run_id]
    assert "Document sets" in page and ">Retention<" in page and rolled.runs[0].run_id in page
    assert "built_on" not in rolled.status(0)["results"]


def test_the_earlier_test_is_not_read_again(rolled: Rolled) -> None:
    reads = [event for event in rolled.registry().events() if event.kind == READ_TEST]
    assert (
        len(reads)
        == len({event.subject for event in reads})
        == sum(bool(rolled.status(n)["results"]["pick"]) for n in (0, 1))
    )
    if pick := rolled.status(1)["results"]["pick"]:
        validated = rolled.scores(1, "judge-eval-candidates-1")[pick].suite("retention")
        tested = rolled.scores(1, "locked-test")
        assert tested[pick].suite("retention").points == validated.points
        assert tested[pick].suite("retention").details["reused_share"] == 1
        assert set(rolled.status(1)["results"]["paired"]["earlier"]) == {"domain", "general", "retention"}


def test_a_second_run_on_the_same_reuses_every_task(rolled: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    call(["run", str(rolled.files[1]), "--set", WEIGHTS, "--on", rolled.runs[0].run_id])
    assert all(stage["reused"] for stage in rolled.status(1)["stages"])
    assert "earlier-run" in {stage["task"] for stage in rolled.status(1)["stages"]}
    assert "earlier-run" not in {stage["task"] for stage in rolled.status(0)["stages"]}


def test_a_third_run_retains_both_sets_before_it(chain: Rolled) -> None:
    sets = list(read_records(chain.artifact(2, "earlier-run") / "sets.jsonl", EarlierSet))
    assert [one.run_id for one in sets] == [one.run_id for one in chain.runs[:2]]
    kept = list(read_records(chain.artifact(2, "qa-build") / "retention.jsonl", RetainedPair))
    assert {one.run_id for one in kept} == {one.run_id for one in sets}
    assert len(kept) == len({one.id for one in kept}) == sum(one.validation for one in sets)
    results = chain.status(2)["results"]
    theta_ia = results["built_on"]["retained"]["theta_IA"]
    assert set(theta_ia) == {one.run_id for one in sets}
    (whole,) = {
        model["retention"]["points"] for model in results["models"] if model["id"] == "theta_IA"
    }  # the same on validation and test
    counted = sum(one["points"] * one["count"] for one in theta_ia.values()) / len(kept)
    assert whole == pytest.approx(counted)
    states = [chain.artifact(2, "base-model"), *(chain.artifact(number, "align") / "checkpoint" for number in range(3))]
    theta_0, *after = map(weights, states)
    newer = weights(chain.artifact(2, "merge-candidate-1") / "set_weights-newer")
    for name, value in theta_0.items():
        first, second, third = (one[name] for one in after)
        expected = value + 0.25 * (second - value) + 0.75 * (third - second)
        torch.testing.assert_close(newer[name], expected, rtol=1e-6, atol=1e-7)
        assert not torch.equal(first, second)
    (model, *_) = results["built_on"]["deltas"]
    assert len(model["norms"]) == 3 and len(model["cosines"]) == 3
    names = {
        check["evaluation"]
        for check in json.loads((chain.artifact(2, "qa-build") / "decontamination.json").read_text())
    }
    assert {f"{split} of {one.run_id}" for one in sets for split in ("validation", "test")} <= names


def refused(*arguments: str) -> str:
    """What the command line says, in one line, when it refuses."""
    import contextlib
    import io

    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert call(["run", *arguments]) == ExitCode.USER_ERROR
    return told.getvalue().strip()


def test_a_run_that_is_not_there_or_not_finished_is_refused(rolled: Rolled, tmp_path: Path) -> None:
    run = str(rolled.files[1])
    state = Workspace.of(rolled.runs[0]).state
    there = ", ".join(sorted(run.name for run in (state / "runs").iterdir()))
    assert refused(run, "--on", "nowhere").startswith(
        f"error: --on nowhere: no run file and no run in {state}; runs there: {there}"
    )
    assert refused(run, "--on", "tiny-").startswith(f"error: --on tiny-: fits {there}")
    assert "no such run file" in refused(run, "--on", "other.yaml")
    assert refused(run, "--on", run).startswith("error: --on: no run tiny-1-")  # that file without run.on never ran

    link_tree(state / "runs", tmp_path / "state" / "runs")
    (tmp_path / "state" / "runs" / rolled.runs[0].run_id / "tasks" / "register.json").unlink()
    told = refused(run, "--on", rolled.runs[0].run_id, "--state", str(tmp_path / "state"))
    assert told == (
        f"error: --on: run {rolled.runs[0].run_id} is not finished, it lacks register; run its run file to the end "
        "first"
    )
    told = refused(run, "--on", str(state / "runs" / rolled.runs[0].run_id), "--state", str(tmp_path / "state"))
    assert "is a run of another state folder than" in told
    assert not (tmp_path / "state" / "artifacts").exists()


def start_stage(rolled: Rolled, base: Path, out: Path, **model: Any) -> str:
    """Return how the stage refuses the first run for a run file with another model section."""
    sections = rolled.runs[1].model_dump(mode="json")
    sections["model"] |= model
    with pytest.raises(UserError) as error:
        context = Context.for_tests(Workspace.of(rolled.runs[0]).state)
        earlier_run.run(RunFile.model_validate(sections), {"base": base}, out, context)
    assert not out.exists()
    return str(error.value)


def test_another_theta_0_or_system_turn_is_refused(rolled: Rolled, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", seed=5)
    told = start_stage(rolled, other, tmp_path / "out")
    assert told.startswith(f"run.on: run {rolled.runs[0].run_id} began with a theta_0 of weights ")
    assert told.endswith("give model.source the model of that run")
    told = start_stage(rolled, rolled.artifact(0, "base-model"), tmp_path / "out", system_turn="Be brief.")
    assert "was trained with model.system_turn None, this one has 'Be brief.'" in told


def test_other_weights_than_were_named_are_refused(rolled: Rolled) -> None:
    sections = rolled.runs[1].model_dump(mode="json")
    sections["run"]["on"] = f"{rolled.runs[0].run_id}@{'0' * 64}"
    with pytest.raises(UserError, match=r"theta_IA of run tiny-\w+ is \w{12} now, not 0{12}: it was trained again"):
        check_earlier(RunFile.model_validate(sections))
    assert check_earlier(rolled.runs[1]).status == "pass"


def test_what_is_made_from_a_retracted_document_is_no_start(rolled: Rolled) -> None:
    registry = rolled.registry()
    document = json.loads((rolled.artifact(0, "qa-build") / "documents.jsonl").read_text().splitlines()[0])
    made, _ = retract(registry, document["source_digest"], "licence ended")
    try:
        with pytest.raises(UserError, match=r"was made from .* which is retracted \(licence ended\); run that"):
            check_earlier(rolled.runs[1])
        again = {one.run_id: one.again for one in plan(registry, Workspace.of(rolled.runs[0]).state)}
        assert {"earlier-run", "qa-build", "inject"} <= set(again[rolled.runs[1].run_id])
    finally:
        restore(registry, made.subject, "licence renewed", "Ada Byron")
