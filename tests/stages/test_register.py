"""Register with a real MLflow store and registry; what the report shows is tested with the report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import PermanentError, UserError
from iar.methods.digest import digest_json
from iar.records import Candidate, Lineage, Outcome, Selection, to_json, write_json, write_records
from iar.services.checkpoints import weights_digest
from iar.services.lineage import render_upstream
from iar.services.registry import Producer
from iar.services.registry_heads import HEAD_TAG, heads_in
from iar.services.tracking import Tracker
from iar.services.workspace import Context
from iar.stages import register
from tests.examination import questions, write_questions
from tests.report.folders import RUN_FILE as report_run_file
from tests.report.folders import make_run
from tests.services.tracker_cases import fresh_store, make_checkpoint
from tests.tiny_model import make_tiny_model

PRODUCER = Producer("r", "register", "1", "c", 17, 0.0, 1.0)
PICK = "ties-d0.3"
RUN_FILE = RunFile.model_validate({"run": {"name": "demo"}, "documents": {"path": "docs"}})


def write_page(out: Path, report: dict[str, Any], lineage: str) -> Path:
    (out / "report.html").write_text(f"<html>{report['run_id']}{lineage}</html>")
    (out / "frontier.png").write_bytes(b"png")
    return out / "report.html"


@pytest.fixture(autouse=True)
def no_outer_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


@pytest.fixture
def plain_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "collect", lambda inputs, run_file, run_id: {"run_id": run_id, "taken_before": SEEN})
    monkeypatch.setattr(register, "results_json", lambda report: report)
    monkeypatch.setattr(register, "write_report", write_page)
    monkeypatch.setattr(register, "model_card", lambda report: f"# Card of {report['run_id']}\n\n## More\n")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context.for_tests(fresh_store(tmp_path / "state"))


@pytest.fixture
def inputs(tmp_path: Path, plain_report: None) -> dict[str, Path]:
    """Two shards of candidates, the pick in the second, and the selection."""
    shards = {f"candidates_{number}": tmp_path / f"merge-{number}" for number in (1, 2)}
    for folder, name in zip(shards.values(), ("slerp-t0.2", PICK), strict=True):
        checkpoint = make_checkpoint(folder / name, name.encode())
        candidate = Candidate(name, "x", "x", 0.3, 17, weights_digest(checkpoint), 0.5, 1.0, 1.0)
        write_records(folder / "candidates.jsonl", [candidate])
    digest = weights_digest(shards["candidates_2"] / PICK)
    select(tmp_path, Selection(PICK, "rule", 1.0, (), "d" * 64, digest, "general"))
    return {"selector": tmp_path / "selector", "data": write_questions(tmp_path / "data"), **shards}


def select(tmp_path: Path, selection: Selection) -> None:
    (tmp_path / "selector").mkdir(exist_ok=True)
    write_json(tmp_path / "selector" / "selection.json", to_json(selection))


SEEN = "9 of 9 questions taken before by 1 other model (dare-p0.1)"


def run(inputs: dict[str, Path], tmp_path: Path, context: Context) -> tuple[Outcome, Path]:
    (out := tmp_path / "out").mkdir(exist_ok=True)
    return register.run(RUN_FILE, inputs, out, context), out


def test_the_pick_is_kept_once_registered_and_leads_back_to_the_decision(
    inputs: dict[str, Path], tmp_path: Path, context: Context
) -> None:
    outcome, out = run(inputs, tmp_path, context)

    weights = inputs["candidates_2"] / PICK / "model.safetensors"
    assert (out / "model" / "model.safetensors").samefile(weights)
    assert json.loads((out / "results.json").read_text()) == {"run_id": context.run_id, "taken_before": SEEN}
    assert outcome.metrics == {"registered": 1.0, "version": 1.0}
    assert "**ties-d0.3** as `iar-demo` version 1, alias `candidate`" in outcome.markdown

    client = Tracker(RUN_FILE, context.run_id, context.state)._client()
    version = client.get_model_version_by_alias("iar-demo", "candidate")
    model, report = outcome.lineage
    assert version.tags["iar.lineage"] == model.digest and version.tags["iar.candidate"] == PICK
    assert (version.tags["iar.test.taken_before"], version.tags["iar.preference"]) == (SEEN, "preference general")
    assert (model.payload["test"], model.payload["preference"]) == (SEEN, "preference general")
    assert version.description == f"# Card of {context.run_id}"
    assert (out / "model" / "README.md").read_text().endswith("## More\n")
    assert not list(weights.parent.glob("*.md"))  # the candidate's own folder stays as it was
    assert json.loads((out / "model" / "input_example.json").read_text()) == {
        "messages": [{"role": "user", "content": "Who is 0 in validation?"}],
        "max_tokens": 40,
    }
    parent = client.search_runs(["1"], "tags.`iar.stage` = 'pipeline'")[0]
    names = [item.path for item in client.list_artifacts(parent.info.run_id)]
    assert names == ["frontier.png", "report.html", "results.json"]

    selection = json.loads((inputs["selector"] / "selection.json").read_text())
    decision = Lineage("decision", digest_json(selection), f"pick {PICK}", selection)
    candidate = Lineage("candidate", weights_digest(weights.parent), PICK, {})
    registry = context.registry()
    registry.record([decision, candidate, *outcome.lineage], PRODUCER)
    kinds = [row.kind for row in render_upstream(registry, report.digest)]
    assert kinds == ["report", "decision", "checkpoint", "candidate"]


def test_a_second_try_after_a_kill_gives_the_same_version(
    inputs: dict[str, Path], tmp_path: Path, context: Context
) -> None:
    first, _ = run(inputs, tmp_path, context)
    second, _ = run(inputs, tmp_path, context)

    assert first == second


def test_without_a_feasible_candidate_the_report_is_written_and_nothing_registered(
    inputs: dict[str, Path], tmp_path: Path, context: Context
) -> None:
    select(tmp_path, Selection("", "rule", 1.0, (), "d" * 64, ""))

    outcome, out = run(inputs, tmp_path, context)

    assert outcome.metrics == {"registered": 0.0} and "No feasible candidate" in outcome.markdown
    assert (out / "report.html").is_file() and not (out / "model").exists()
    assert [entry.kind for entry in outcome.lineage] == ["report"]
    assert Tracker(RUN_FILE, context.run_id, context.state)._client().search_registered_models() == []


def test_a_candidate_that_changed_after_the_selection_is_refused(
    inputs: dict[str, Path], tmp_path: Path, context: Context
) -> None:
    (inputs["candidates_2"] / PICK / "model.safetensors").write_bytes(b"other")

    with pytest.raises(PermanentError, match=r"but the selection was made for [0-9a-f]{12}: run merge-candidate"):
        run(inputs, tmp_path, context)


def test_a_pick_that_no_input_holds_is_named(inputs: dict[str, Path], tmp_path: Path, context: Context) -> None:
    select(tmp_path, replace(Selection("", "rule", 1.0, (), "d" * 64, "c" * 64), pick="dare-p0.1"))

    with pytest.raises(UserError, match=r"no candidate input holds the pick 'dare-p0.1': run merge-candidate again"):
        run(inputs, tmp_path, context)


def test_a_whole_run_becomes_a_version_with_card_signature_and_example(tmp_path: Path, context: Context) -> None:
    made = make_run(tmp_path / "run")
    write_records(made.inputs["data"] / "validation.jsonl", questions("validation"))
    pick = made.selection.pick
    (shard,) = [
        folder for role, folder in made.inputs.items()
        if role.startswith("candidates") and pick in (folder / "candidates.jsonl").read_text()
    ]  # fmt: skip
    make_tiny_model(shard / pick)
    write_json(shard / pick / "checkpoint.json", {"digest": made.selection.candidate_digest})
    (out := tmp_path / "out").mkdir()

    assert register.run(report_run_file, made.inputs, out, context).metrics == {"registered": 1.0, "version": 1.0}

    client = Tracker(report_run_file, context.run_id, context.state)._client()
    version = client.get_model_version_by_alias("iar-demo", "candidate")
    import mlflow

    model = mlflow.models.Model.load(version.source.removeprefix("file://"))
    assert model.get_input_schema().input_names()[0] == "messages"
    assert model.load_input_example(str(out / "model"))["messages"][-1]["content"] == "Who is 0 in validation?"
    card = (out / "model" / "README.md").read_text()
    assert card.startswith(f"# `iar-demo`: `{pick}`") and "## Limits" in card
    assert version.description == card.partition("\n## ")[0].strip()


def test_the_lineage_of_the_pick_is_a_page_beside_the_report_and_its_head_a_tag(
    inputs: dict[str, Path], tmp_path: Path, context: Context
) -> None:
    digest = weights_digest(inputs["candidates_2"] / PICK)
    base = Lineage("checkpoint", "b" * 64, "theta_0 <script>alert(1)</script>", {})
    registry = context.registry()
    registry.record([base, Lineage("candidate", digest, PICK, {}, (("base", base.digest),))], PRODUCER)

    _, out = run(inputs, tmp_path, context)

    page = (out / "lineage.html").read_text(encoding="utf-8")
    assert (
        f"<code>candidate:{digest[:12]}</code> {PICK}" in page and "base:</span> <code>checkpoint:bbbbbbbbbbbb" in page
    )
    assert "<script" not in page and "theta_0 &lt;script&gt;" in page
    assert (out / "report.html").read_text().endswith("lineage.html</html>")
    tracker = Tracker(RUN_FILE, context.run_id, context.state)
    parent = tracker._client().search_runs(["1"], "tags.`iar.stage` = 'pipeline'")[0]
    names = [item.path for item in tracker._client().list_artifacts(parent.info.run_id)]
    assert names == ["frontier.png", "lineage.html", "report.html", "results.json"]
    (head,) = heads_in(tracker.tag_values(HEAD_TAG), registry)
    assert head.startswith("recording:1:") and registry.lacking([head]) == []
