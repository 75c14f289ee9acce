"""The locked test: read once, after the pick; the general suites are not generated again."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.attacks import DRESSED, OWN_WRONG_ANSWERS
from iar.methods.digest import digest_file, digest_json
from iar.methods.provenance import UNCHECKED, taken_before
from iar.records import (
    Baseline,
    Candidate,
    Chunk,
    CrossDocumentPair,
    Document,
    EvalItem,
    Lineage,
    ModelScores,
    QAPair,
    Reply,
    Selection,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.report.diagnostics import read_diagnostics
from iar.services.checkpoints import weights_digest
from iar.services.registry import Producer
from iar.services.test_lock import open_locked_test
from iar.services.verifier_runs import wrong_answers_in
from iar.services.verifiers import OWN_ATTACKS, read_audits
from iar.services.workspace import Context
from iar.stages import judge_eval, locked_test
from tests.examination import examination_run_file, questions, write_questions
from tests.tiny_model import make_tiny_model

PICK = "ties-d0.3"


@pytest.fixture
def run_file(tmp_path: Path) -> RunFile:
    return examination_run_file(tmp_path / "suites")


@pytest.fixture
def inputs(tiny_model_folder: Path, tmp_path: Path) -> dict[str, Path]:
    roles = {"data": write_questions(tmp_path / "data"), "base": tiny_model_folder}
    for seed, role in enumerate(("vanilla", "tuned"), 1):
        make_tiny_model(tmp_path / role / "checkpoint", seed)
        roles[role] = tmp_path / role
    digest = weights_digest(make_tiny_model(tmp_path / "merged" / PICK, 3))
    candidate = Candidate(PICK, "ties", "density", 0.3, 17, digest, 1.0, 1.0, 1.0)
    write_records(tmp_path / "merged" / "candidates.jsonl", [candidate])
    return roles | {"candidates_1": tmp_path / "merged"}


def select(inputs: dict[str, Path], tmp_path: Path, pick: str = PICK, digest: str = "") -> Context:
    """Write a selection as the selector does and record it; return the context of its registry."""
    validated = digest_file(inputs["data"] / "validation.jsonl")
    weights = digest or weights_digest(inputs["candidates_1"] / PICK)
    selection = Selection(pick, "rule", 1.0, (), validated, weights)
    for folder in ("selector", "out"):
        (tmp_path / folder).mkdir()
    write_json(tmp_path / "selector" / "selection.json", to_json(selection))
    inputs["selector"] = tmp_path / "selector"
    context = Context.for_tests(tmp_path)
    entry = Lineage("decision", digest_json(to_json(selection)), "pick", to_json(selection))
    context.registry().record([entry], Producer("run", "selector", "code", "config", 17, 0.0, 1.0))
    return context


def test_pick_and_references_are_tested_and_compared(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context, out = select(inputs, tmp_path), tmp_path / "out"
    outcome = locked_test.run(run_file, inputs, out, context)
    scores = list(read_records(out / "scores.jsonl", ModelScores))
    assert [(one.model, one.split) for one in scores] == [
        (model, "test") for model in (PICK, "theta_0", "vanilla", "theta_IA")
    ]
    assert list(read_records(out / "questions.jsonl", QAPair)) == questions("test")
    assert [event.kind for event in context.registry().events(kinds=["read-test"])] == ["read-test"]

    paired = json.loads((out / "paired.json").read_text())
    assert paired["pick"] == PICK
    assert [(one["against"], one["axis"], one["items"]) for one in paired["differences"]] == [
        (against, axis, items)
        for against in ("vanilla", "theta_0", "theta_IA")
        for axis, items in (("domain", 2), ("general", 6))
    ]
    for one in paired["differences"]:
        theirs = next(scores for scores in scores if scores.model == one["against"])
        assert one["points"] == pytest.approx(getattr(scores[0], one["axis"]) - getattr(theirs, one["axis"]))
        assert one["low"] <= one["points"] <= one["high"]
    assert f"| {PICK} - vanilla | domain |" in outcome.markdown


def test_general_suites_come_from_validation(run_file: RunFile, inputs: dict[str, Path], tmp_path: Path) -> None:
    context = select(inputs, tmp_path)
    candidates = {"data": inputs["data"], "base": inputs["base"], "candidates": inputs["candidates_1"]}
    judge_eval.run(run_file, {**inputs}, tmp_path / "references", context)
    judge_eval.run(run_file, candidates, tmp_path / "scores", context)
    inputs |= {"references": tmp_path / "references", "scores_1": tmp_path / "scores"}
    locked_test.run(run_file, inputs, tmp_path / "out", context)

    before = {one.model: one for name in ("references", "scores") for one in read_scores(tmp_path / name)}
    for after in read_scores(tmp_path / "out"):
        assert after.general == before[after.model].general
        assert {suite.suite: suite.details["reused_share"] for suite in after.suites} == {
            "domain": 0, "ifeval": 1, "mmlu": 1, "msbench": 1
        }  # fmt: skip


def test_judges_meet_the_picks_own_wrong_answers_dressed_up_before_the_test_is_read(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = select(inputs, tmp_path)
    candidates = {"data": inputs["data"], "base": inputs["base"], "candidates": inputs["candidates_1"]}
    judge_eval.run(run_file, candidates, tmp_path / "scores", context)
    inputs |= {"scores_1": tmp_path / "scores"}
    replies = list(read_records(tmp_path / "scores" / PICK / "replies.jsonl", Reply))
    said = [replace(reply, text="Bram Lusk") for reply in replies]  # the model of two layers says nothing
    write_records(tmp_path / "scores" / PICK / "replies.jsonl", said)
    locked_test.run(run_file, inputs, tmp_path / "out", context)

    audits = read_audits(tmp_path / "out", OWN_ATTACKS)
    assert [one.verifier for one in audits] == list(run_file.evaluate.judges)
    wrong = list(wrong_answers_in([tmp_path / "scores"], PICK))
    assert wrong and {one.kind for one in audits[0].attacks} <= {OWN_WRONG_ANSWERS, *(f"own-{k}" for k in DRESSED)}
    assert all(one.attacks and not one.calibration for one in audits)
    assert list(wrong_answers_in([tmp_path / "scores"], "vanilla")) == []


def test_other_models_are_read_beside_theta_0(run_file: RunFile, inputs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    other = make_tiny_model(tmp_path / "other", 7)
    context, out = select(inputs, tmp_path), tmp_path / "out"
    write_records(inputs["data"] / "documents.jsonl", [Document("d", "Velm", LINES, "velm.txt", "text/plain", "")])
    with pytest.raises(UserError, match=r"^diagnose\.beside: '.*nobody' is no folder here"):
        locked_test.run(with_diagnostics(run_file, beside=[str(tmp_path / "nobody")]), inputs, out, context)
    assert context.registry().events(kinds=["read-test"]) == []
    locked_test.run(with_diagnostics(run_file, beside=[str(other)]), inputs, out, context)
    (found,) = read_diagnostics([out], PICK).beside
    assert (found.model, found.checkpoint_digest) == (str(other), weights_digest(other)) and found.source > 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")) == []


def test_baselines_are_tested_after_the_references_and_compared_with_the_pick(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context, out = select(inputs, tmp_path), tmp_path / "out"
    make_tiny_model(tmp_path / "replay" / "checkpoint", 6)
    write_json(tmp_path / "replay" / "baseline.json", to_json(Baseline("replay", 10, 5, {})))
    inputs["baselines_1"] = tmp_path / "replay"
    shown = {name: inputs[name] for name in ("data", "base", "baselines_1")}
    judge_eval.run(run_file, shown, tmp_path / "validated", context)
    inputs["baseline_scores"] = tmp_path / "validated"
    locked_test.run(run_file, inputs, out, context)

    scores = {one.model: one for one in read_scores(out)}
    assert list(scores) == [PICK, "theta_0", "vanilla", "theta_IA", "replay"]
    # the general suites were answered on validation already
    assert scores["replay"].general == read_scores(tmp_path / "validated")[0].general
    assert scores["replay"].suite("mmlu").details["reused_share"] == 1
    paired = json.loads((out / "paired.json").read_text())
    assert [one["against"] for one in paired["differences"][-2:]] == ["replay", "replay"]
    assert len(context.registry().events(kinds=["read-test"])) == 1


def test_scores_of_a_second_look_say_so_wherever_they_are_kept(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = select(inputs, tmp_path)
    before = Selection("slerp-t0.2", "rule", 1.0, (), digest_file(inputs["data"] / "validation.jsonl"), "0" * 64)
    registry = context.registry()
    entry = Lineage("decision", digest_json(to_json(before)), "pick", to_json(before))
    registry.record([entry], Producer("earlier", "selector", "code", "config", 17, 0.0, 1.0))
    open_locked_test(inputs["data"], before, registry)
    outcome = locked_test.run(run_file, inputs, tmp_path / "out", context)

    mark = "2 of 2 questions taken before by 1 other model (slerp-t0.2)"
    assert outcome.markdown.startswith(f"**Not a first look**: {mark}.")
    entries = [one for one in outcome.lineage if one.kind == "scores"]
    assert len(entries) == 4 and {taken_before(one) for one in entries} == {mark}
    found_by = [{name: value for name, value in one.payload.items() if name != UNCHECKED} for one in entries]
    assert [one.digest for one in entries] == [digest_json(payload) for payload in found_by]


def read_scores(folder: Path) -> list[ModelScores]:
    return list(read_records(folder / "scores.jsonl", ModelScores))


def test_without_a_pick_nothing_is_read(run_file: RunFile, inputs: dict[str, Path], tmp_path: Path) -> None:
    context = select(inputs, tmp_path, pick="")
    (inputs["data"] / "test.jsonl").unlink()
    outcome = locked_test.run(run_file, inputs, tmp_path / "out", context)
    assert "No feasible candidate" in outcome.markdown
    assert json.loads((tmp_path / "out" / "paired.json").read_text()) == {"pick": "", "differences": []}
    assert read_scores(tmp_path / "out") == []
    assert context.registry().events(kinds=["read-test"]) == []


def test_weights_other_than_the_selected_ones_are_refused_unread(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = select(inputs, tmp_path, digest="0" * 64)
    with pytest.raises(UserError, match=r"no candidate input holds the pick 'ties-d0\.3' with weights 000000000000"):
        locked_test.run(run_file, inputs, tmp_path / "out", context)
    assert context.registry().events(kinds=["read-test"]) == []


def with_diagnostics(run_file: RunFile, **settings: object) -> RunFile:
    return RunFile.model_validate(run_file.model_dump() | {"diagnose": {"enabled": True, **settings}})


LINES = "The harbour of Velm was opened in 1911 by Tora Lind. A green lamp burns in the tower at night. " * 3


def test_the_diagnostics_ask_the_pick_and_theta_0_and_come_from_one_reading(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("bm25s")
    context, out = select(inputs, tmp_path), tmp_path / "out"
    write_records(inputs["data"] / "documents.jsonl", [Document("d", "Velm", LINES, "velm.txt", "text/plain", "")])
    write_records(inputs["data"] / "chunks.jsonl", [Chunk("c", "d", 0, len(LINES), LINES)])
    (tmp_path / "unseen").mkdir()
    (tmp_path / "unseen" / "other.txt").write_text(
        "The pier\n\nGulls cry over the pier where the old ferry waits. Two boys with a net ran down to it."
    )
    asked = with_diagnostics(run_file, passages=2, continuations=3, unseen=str(tmp_path / "unseen"))
    locked_test.run(asked, inputs, out, context)

    found = json.loads((out / "diagnostics.json").read_text())["models"]
    assert set(found) == {PICK, "theta_0"}
    scores = {one.model: one for one in read_scores(out)}
    for model, one in found.items():
        assert set(one["scores"]) == {
            "closed_book", "open_book", "reworded", "continued_seen", "continued_unseen", "refused_harmless"
        }  # fmt: skip
        assert one["scores"]["closed_book"]["points"] == scores[model].domain
        assert one["scores"]["open_book"]["count"] == one["scores"]["reworded"]["count"] == 2
        assert one["identity"][0][0] == "Who are you?"
    items = {one.id: one for one in read_records(out / "diagnostics" / "items.jsonl", EvalItem)}
    # A chunk that would leave no room for the reply is left out of a prompt, so that the model is asked all the same.
    assert items["open_book-test-0"].prompt.endswith("Who is 0 in test?")
    assert items["reworded-test-0"].prompt != "Who is 0 in test?" in items["reworded-test-0"].prompt
    assert [event.kind for event in context.registry().events(kinds=["read-test"])] == ["read-test"]
    (out / "diagnostics.json").unlink()
    locked_test.run(asked, inputs, out, context)
    assert json.loads((out / "diagnostics.json").read_text())["models"] == found


def test_unseen_documents_that_are_not_there_are_named_before_the_test_is_read(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = select(inputs, tmp_path)
    with pytest.raises(UserError, match=r"^diagnose\.unseen: .*nowhere"):
        locked_test.run(with_diagnostics(run_file, unseen=str(tmp_path / "nowhere")), inputs, tmp_path / "out", context)
    assert context.registry().events(kinds=["read-test"]) == []


def test_a_search_package_that_is_missing_is_named_before_the_test_is_read(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = select(inputs, tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "bm25s" else find(name, *more))
    with pytest.raises(UserError, match=r"^diagnose\.enabled: the package bm25s is missing; pip install"):
        locked_test.run(with_diagnostics(run_file), inputs, tmp_path / "out", context)
    assert context.registry().events(kinds=["read-test"]) == []
    assert not (tmp_path / "out" / "questions.jsonl").exists()


def test_questions_over_two_documents_are_scored_apart(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = select(inputs, tmp_path)
    across = [
        CrossDocumentPair(**(vars(one) | {"id": f"x-{one.id}"}), other_document_id="e", other_chunk_id="e.0")
        for one in questions("test")
    ]
    write_records(inputs["data"] / "test-cross-document.jsonl", across)
    outcome = locked_test.run(run_file, inputs, tmp_path / "out", context)

    assert list(read_records(tmp_path / "out" / "questions.jsonl", QAPair)) == questions("test")
    assert list(read_records(tmp_path / "out" / "cross-questions.jsonl", CrossDocumentPair)) == across
    for scores in read_scores(tmp_path / "out"):
        assert [suite.suite for suite in scores.suites] == ["domain", "ifeval", "mmlu", "msbench", "cross_document"]
        assert scores.suite("cross_document").count == 2 and scores.domain == scores.suite("domain").points
        assert scores.general == pytest.approx(sum(suite.points for suite in scores.suites[1:4]) / 3)
        assert f"{PICK}/cross_document" in outcome.metrics
    assert f"Questions over two documents, 2, in no other score: {PICK} " in outcome.markdown
