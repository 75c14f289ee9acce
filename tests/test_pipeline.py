"""The whole pipeline with its real stages, four baselines among them, on a two-layer model and six short documents.

The first run is killed in training and goes on; the second finds everything done.
"""

import json
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.services.lineage_activities import activities
from iar.services.lineage_questions import consumed_by
from iar.services.registry import Registry
from iar.services.runs import read_status
from iar.services.workspace import Ref, Workspace
from tests.finished_run import BASELINES, Finished, finish

REPOSITORY = Path(__file__).parents[1]
TASKS = 11 + len(BASELINES) + 2  # sdft-rewrite and judge-eval-baselines
CANDIDATES = 12


def artifact(finished: Finished, task: str) -> Path:
    return next(Ref.parse(stage["ref"]).path for stage in finished.status["stages"] if stage["task"] == task)


def test_a_killed_run_goes_on_without_repeating_what_was_done(finished: Finished) -> None:
    stages = {stage["task"]: stage for stage in finished.status["stages"]}
    assert len(stages) == TASKS
    assert stages["base-model"]["reused"] and stages["qa-build"]["reused"]
    assert not stages[finished.killed]["reused"] and stages[finished.killed]["state"] == "done"
    assert finished.status["state"] == ("done" if finished.pick else "no_feasible_candidate")


def test_the_try_that_was_killed_is_on_record_with_what_it_was_given(finished: Finished) -> None:
    registry = Registry.open(f"sqlite:///{Workspace.of(finished.settings).state}/registry.sqlite")
    (killed,) = activities(registry, finished.settings.run_id, failed=True)
    assert (killed.status, killed.stage) == ("killed", finished.killed) and killed.seconds > 0
    kinds = {role: kind for role, digest in killed.used for kind, _ in registry.labels([digest]).values()}
    assert kinds["data"] == "dataset" and kinds["base"] == "checkpoint"
    data = next(digest for role, digest in killed.used if role == "data")
    assert [use.stage for use in consumed_by(registry, data) if use.status == "killed"] == [finished.killed]
    assert not list((Workspace.of(finished.settings).state / "tries").iterdir())


def test_the_selection_judges_all_twelve_candidates(finished: Finished) -> None:
    selection = json.loads((artifact(finished, "selector") / "selection.json").read_text())
    assert selection["pick"] == finished.pick
    assert len(selection["verdicts"]) == CANDIDATES


def test_the_report_and_the_table_are_written_whatever_the_pick(finished: Finished) -> None:
    assert "<html" in Path(finished.status["report"]).read_text(encoding="utf-8").lower()
    assert finished.status["results"]["pick"] == finished.pick
    assert (artifact(finished, "register") / "model").is_dir() == bool(finished.pick)


def test_the_baselines_asked_stand_in_the_table_of_recipes(finished: Finished) -> None:
    rows = {row["recipe"]: row for row in finished.status["results"]["recipes"]}
    assert list(rows)[: 2 + len(BASELINES)] == ["theta_0", "vanilla-sft", *BASELINES]
    assert {row["split"] for row in rows.values()} == {"test" if finished.pick else "validation"}
    assert rows["Inject + Align"]["ratio_to_inject_align"] == 1
    # whole epochs come as near as half of one
    epoch = rows["vanilla-sft"]["ratio_to_inject_align"] / finished.settings.align.epochs
    assert abs(rows["budget-match"]["ratio_to_inject_align"] - 1) <= epoch / 2 + 1e-9
    assert rows["budget-match"]["facts"]["budget_ratio"] == rows["budget-match"]["ratio_to_inject_align"]
    assert rows["fapm"]["target_tokens"] == rows["vanilla-sft"]["target_tokens"]
    questions = (artifact(finished, "qa-build") / "train.jsonl").read_text().splitlines()
    assert rows["sdft"]["facts"]["rewrites"] == len(questions)
    assert set(rows["replay"]["minus_vanilla"]) == {"domain", "general"}


def test_every_artifact_is_whole(finished: Finished) -> None:
    for stage in finished.status["stages"]:
        assert Ref.parse(stage["ref"]).open(verify=True).files


def test_a_second_run_reuses_every_task(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert finish(finished.settings) == finished.pick
    status = read_status(Workspace.of(finished.settings).run(finished.settings.run_id))
    assert len(status["stages"]) == TASKS
    assert all(stage["reused"] for stage in status["stages"])


def test_a_new_setting_of_the_selection_repeats_only_what_follows(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    sections = finished.settings.model_dump(mode="json")
    sections["select"]["tolerance_points"] = 99.0
    settings = RunFile.model_validate(sections)
    finish(settings)
    status = read_status(Workspace.of(settings).run(settings.run_id))
    repeated = {stage["task"] for stage in status["stages"] if not stage["reused"]}
    assert {"selector", "register"} <= repeated <= {"selector", "locked-test", "register"}
