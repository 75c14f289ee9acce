"""Judge-eval on two-layer models: references, candidates, duplicates, and going on after a kill."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.methods.digest import digest_file
from iar.records import (
    Baseline,
    BitsPerByte,
    Candidate,
    ModelScores,
    Reply,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services import engine
from iar.services.checkpoints import weights_digest
from iar.services.engine import Engine
from iar.services.judge_audit import audit_votes
from iar.services.workspace import Context
from iar.stages import judge_eval, prune
from tests.examination import examination_run_file, write_questions
from tests.tiny_model import make_tiny_model


@pytest.fixture
def inputs(tiny_model_folder: Path, tmp_path: Path) -> dict[str, Path]:
    roles = {"data": write_questions(tmp_path / "data"), "base": tiny_model_folder}
    for seed, role in enumerate(("vanilla", "tuned"), 1):
        make_tiny_model(tmp_path / role / "checkpoint", seed)
        roles[role] = tmp_path / role
    return roles


def write_candidates(folder: Path) -> Path:
    """Write two candidates, the first a copy of the second, which another shard's grid order may give."""
    weights = weights_digest(make_tiny_model(folder / "ties-d0.3", 3))
    make_tiny_model(folder / "slerp-t0.2", 3)
    recipes = [("slerp-t0.2", "slerp", "t", 0.2, "ties-d0.3"), ("ties-d0.3", "ties", "density", 0.3, "")]
    write_records(
        folder / "candidates.jsonl",
        [
            Candidate(name, kind, key, value, 17, weights, 1.0, 1.0, 1.0, copy)
            for name, kind, key, value, copy in recipes
        ],
    )
    return folder


def test_references_are_evaluated_on_validation_and_reported(inputs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = judge_eval.run(examination_run_file(tmp_path), inputs, out, Context.for_tests(tmp_path))
    scores = list(read_records(out / "scores.jsonl", ModelScores))
    assert [(one.model, one.split) for one in scores] == [
        ("theta_0", "validation"), ("vanilla", "validation"), ("theta_IA", "validation")
    ]  # fmt: skip
    assert scores[0].checkpoint_digest == weights_digest(inputs["base"])
    for model in ("theta_0", "vanilla", "theta_IA"):
        files = {path.name for path in (out / model).iterdir()}
        assert files == {"replies.jsonl", "votes.parquet", "items.jsonl", "scores.json", "breakdown.json", "bpb.json"}
    measured = list(read_records(out / "bpb.jsonl", BitsPerByte))
    assert [one.model for one in measured] == ["theta_0", "vanilla", "theta_IA"]
    # One chunk is what validation asks about, and six prompts fit.
    assert {one.source_bytes for one in measured} == {65} and len({one.source for one in measured}) == 3
    assert outcome.metrics["vanilla/bpb_source"] == measured[1].source and "| vanilla | " in outcome.markdown
    assert set(outcome.metrics) >= {"theta_0/domain", "vanilla/general", "theta_IA/mmlu"}
    assert "| vanilla |" in outcome.markdown
    verifiers = [("judged-by", entry.digest) for entry in outcome.lineage if entry.kind == "verifier"]
    entry = next(entry for entry in outcome.lineage if entry.kind == "scores")
    votes = next(entry for entry in outcome.lineage if entry.kind == "votes")
    assert votes.payload["file"] == digest_file(out / "theta_0" / "votes.parquet")
    settled = (*verifiers, ("settled-from", votes.digest))
    assert len(verifiers) == 3 and entry.inputs[:5] == (("evaluated", scores[0].checkpoint_digest), *settled)
    asked = {role: [one for one in outcome.lineage if one.kind == role] for role in ("eval-set", "scorer")}
    assert {(role, digest) for role, digest in entry.inputs[5:]} == {
        *(("measured-on", one.digest) for one in asked["eval-set"]),
        *(("scored-by", one.digest) for one in asked["scorer"]),
    }
    assert {one.payload["suite"] for one in asked["eval-set"]} == {"domain", "ifeval", "mmlu", "msbench"}
    assert sum(one.kind == "votes" for one in outcome.lineage) == 3


def test_its_votes_can_be_audited_where_the_suites_are_not(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run_file = tmp_path / "out", examination_run_file(tmp_path / "suites")
    judge_eval.run(run_file, inputs, out, Context.for_tests(tmp_path))
    (tmp_path / "suites").rename(tmp_path / "gone")
    monkeypatch.chdir(out)

    audit = audit_votes(run_file, inputs["data"], [out])

    assert audit.faults == () and audit.agreement.replies == 3 * 4


def write_baseline_folder(folder: Path, recipe: str, seed: int) -> Path:
    """Write a baseline as its stage leaves it."""
    make_tiny_model(folder / "checkpoint", seed)
    write_json(folder / "baseline.json", to_json(Baseline(recipe, 10, 5, {})))
    return folder


def test_baselines_are_evaluated_by_the_names_of_their_recipes(inputs: dict[str, Path], tmp_path: Path) -> None:
    roles = {name: inputs[name] for name in ("data", "base")}
    for number, recipe in enumerate(("replay", "lora"), 1):
        roles[f"baselines_{number}"] = write_baseline_folder(tmp_path / recipe, recipe, 5 + number)
    out = tmp_path / "out"
    judge_eval.run(examination_run_file(tmp_path), roles, out, Context.for_tests(tmp_path))
    scores = list(read_records(out / "scores.jsonl", ModelScores))
    assert [(one.model, one.split) for one in scores] == [("replay", "validation"), ("lora", "validation")]
    assert scores[1].checkpoint_digest == weights_digest(tmp_path / "lora" / "checkpoint")


def test_a_copy_takes_the_scores_of_its_original(inputs: dict[str, Path], tmp_path: Path) -> None:
    roles = {name: inputs[name] for name in ("data", "base")} | {"candidates": write_candidates(tmp_path / "merged")}
    out = tmp_path / "out"
    judge_eval.run(examination_run_file(tmp_path), roles, out, Context.for_tests(tmp_path))
    scores = {one.model: one for one in read_records(out / "scores.jsonl", ModelScores)}
    assert set(scores) == {"ties-d0.3", "slerp-t0.2"}
    assert (scores["slerp-t0.2"].duplicate_of, scores["ties-d0.3"].duplicate_of) == ("ties-d0.3", "")
    assert scores["slerp-t0.2"].suites == scores["ties-d0.3"].suites
    assert not (out / "slerp-t0.2" / "replies.jsonl").exists()


def test_what_another_shard_evaluates_is_not_evaluated_again(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_digest(make_tiny_model(tmp_path / "merged" / "ties-d0.3", 3))
    copy = Candidate("ties-d0.3", "ties", "density", 0.3, 17, weights, 1.0, 1.0, 1.0, "slerp-t0.2")
    write_records(tmp_path / "merged" / "candidates.jsonl", [copy])
    monkeypatch.setattr(engine, "Engine", None)  # nothing is loaded
    roles = {name: inputs[name] for name in ("data", "base")} | {"candidates": tmp_path / "merged"}
    outcome = judge_eval.run(examination_run_file(tmp_path), roles, tmp_path / "out", Context.for_tests(tmp_path))
    assert not list(read_records(tmp_path / "out" / "scores.jsonl", ModelScores))
    assert not list(read_records(tmp_path / "out" / "bpb.jsonl", BitsPerByte))
    assert not [entry for entry in outcome.lineage if entry.kind == "scores"]


def test_a_near_copy_of_a_pruned_candidate_has_no_scores_either(inputs: dict[str, Path], tmp_path: Path) -> None:
    run_file, context = examination_run_file(tmp_path), Context.for_tests(tmp_path)
    run_file = RunFile.model_validate(run_file.model_dump() | {"select": {"prune_to": 1}})
    merged, pruned = tmp_path / "merged", tmp_path / "pruned"
    copies = {"a": "", "b": "", "near-a": "a", "near-b": "b"}
    digests = {name: weights_digest(make_tiny_model(merged / name, seed)) for seed, name in enumerate(copies)}
    candidates = [Candidate(name, "x", "x", 0.1, 17, digests[name], 1.0, 1.0, 1.0, copies[name]) for name in copies]
    write_records(merged / "candidates.jsonl", candidates)
    roles = {name: inputs[name] for name in ("data", "base")}
    prune.run(run_file, roles | {"candidates_1": merged}, pruned, context)
    (kept,) = json.loads((pruned / "kept.json").read_text())
    judge_eval.run(run_file, roles | {"candidates": merged, "pruned": pruned}, tmp_path / "out", context)
    name = next(name for name, digest in digests.items() if digest == kept)
    scored = [one.model for one in read_records(tmp_path / "out" / "scores.jsonl", ModelScores)]
    assert scored == [name, f"near-{name}"]


def test_pruned_candidates_are_measured_once_and_not_asked(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file, context = examination_run_file(tmp_path), Context.for_tests(tmp_path)
    run_file = RunFile.model_validate(run_file.model_dump() | {"select": {"prune_to": 1}})
    roles = {name: inputs[name] for name in ("data", "base")}
    shards = {"candidates_1": write_candidates(tmp_path / "merged"), "candidates_2": tmp_path / "more"}
    seeds = {"dare-p0.1": 5, "dare-p0.3": 6, "slerp-t0.4": 3}  # the last has the weights of ties-d0.3
    digests = {name: weights_digest(make_tiny_model(tmp_path / "more" / name, seed)) for name, seed in seeds.items()}
    merged = [Candidate(name, "x", "x", 0.1, 17, digest, 1.0, 1.0, 1.0) for name, digest in digests.items()]
    write_records(tmp_path / "more" / "candidates.jsonl", merged)

    pruned = tmp_path / "pruned"
    outcome = prune.run(run_file, roles | shards, pruned, context)
    measured = list(read_records(pruned / "bpb.jsonl", BitsPerByte))
    kept = json.loads((pruned / "kept.json").read_text())
    least = min(measured, key=lambda one: one.source + one.general)
    assert len(measured) == 3 and kept == [least.checkpoint_digest]
    assert outcome.metrics["kept"] == 1 and outcome.markdown.startswith("1 of 3 candidates are evaluated.")

    monkeypatch.setattr(Engine, "bits", None)  # nothing is measured twice
    prune.run(run_file, roles | shards, pruned, context)
    found: dict[str, BitsPerByte] = {}
    scored: set[str] = set()
    for number, folder in enumerate(shards.values(), 1):
        out = tmp_path / f"scores-{number}"
        judge_eval.run(run_file, roles | {"candidates": folder, "pruned": pruned}, out, context)
        scored |= {one.checkpoint_digest for one in read_records(out / "scores.jsonl", ModelScores)}
        found |= {one.model: one for one in read_records(out / "bpb.jsonl", BitsPerByte)}
    assert scored == set(kept)
    assert set(found) == {"ties-d0.3", "dare-p0.1", "dare-p0.3", "slerp-t0.4"}
    assert found["slerp-t0.4"] == replace(found["ties-d0.3"], model="slerp-t0.4")


def test_a_killed_evaluation_goes_on_and_ends_with_the_same_files(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file, context = examination_run_file(tmp_path), Context.for_tests(tmp_path)
    generated: list[str] = []
    lifetime = [100]

    class Mortal(Engine):
        def __init__(self, checkpoint: Path, system_turn: str | None, batch_size: int) -> None:
            # In bf16 a token of nearly equal rivals may fall otherwise when fewer rows share the batch.
            super().__init__(checkpoint, system_turn, batch_size, dtype="float32")

        def generate(self, *args: object, **kwargs: object) -> Iterator[Reply]:
            for reply in super().generate(*args, **kwargs):  # type: ignore[arg-type]
                if len(generated) == lifetime[0]:
                    raise KeyboardInterrupt
                generated.append(reply.item_id)
                yield reply

    monkeypatch.setattr(engine, "Engine", Mortal)
    judge_eval.run(run_file, inputs, tmp_path / "whole", context)
    generated.clear()
    lifetime[0] = 11  # in the middle of the second model
    with pytest.raises(KeyboardInterrupt):
        judge_eval.run(run_file, inputs, tmp_path / "killed", context)
    first_model = (tmp_path / "killed" / "theta_0" / "scores.json").stat().st_mtime_ns
    lifetime[0] = 100
    judge_eval.run(run_file, inputs, tmp_path / "killed", context)

    assert len(generated) == 3 * 8
    assert (tmp_path / "killed" / "theta_0" / "scores.json").stat().st_mtime_ns == first_model
    for name in ("scores.jsonl", "vanilla/replies.jsonl", "theta_IA/items.jsonl", "vanilla/votes.parquet"):
        assert digest_file(tmp_path / "killed" / name) == digest_file(tmp_path / "whole" / name)


def test_theta_i_is_read_and_asked_nothing(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path / "inject" / "checkpoint", 4)
    given = inputs | {"inject": tmp_path / "inject"}
    out = tmp_path / "out"
    outcome = judge_eval.run(examination_run_file(tmp_path), given, out, Context.for_tests(tmp_path))
    measured = {one.model: one for one in read_records(out / "bpb.jsonl", BitsPerByte)}
    assert list(measured) == ["theta_0", "vanilla", "theta_IA", "theta_I"]
    assert measured["theta_I"].checkpoint_digest == weights_digest(tmp_path / "inject" / "checkpoint")
    assert len({one.source for one in measured.values()}) == 4
    assert outcome.metrics["theta_I/bpb_source"] == measured["theta_I"].source and "| theta_I | " in outcome.markdown
    assert {path.name for path in (out / "theta_I").iterdir()} == {"bpb.json"}
    assert [one.model for one in read_records(out / "scores.jsonl", ModelScores)] == ["theta_0", "vanilla", "theta_IA"]

    def refuse(*arguments: object) -> None:
        raise AssertionError("measured twice")

    monkeypatch.setattr(Engine, "bits", refuse)
    again = judge_eval.run(examination_run_file(tmp_path), given, out, Context.for_tests(tmp_path))
    assert again.metrics == outcome.metrics
