"""Fisher weights through the real stages: measured on a two-layer model, merged by, and built again from the recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.fisher import tensor_weights
from iar.methods.merging import task_arithmetic
from iar.records import Candidate, EarlierSet, Outcome, TensorInformation, read_records, write_records
from iar.services.decontamination import read_checks
from iar.services.workspace import Context
from iar.stages import fisher, merge_candidate
from tests.examination import examination_run_file, questions, write_questions
from tests.services.merge_parents import derive, noisy

GIVEN = [{"prompt": f"How do I cook dish {n}?", "answer": f"Cook it for {n} minutes."} for n in range(5)]


@pytest.fixture
def inputs(tiny_model_folder: Path, tmp_path: Path) -> dict[str, Path]:
    data = write_questions(tmp_path / "data")
    write_records(data / "train.jsonl", questions("train"))
    derive(tiny_model_folder, tmp_path / "tuned" / "checkpoint", noisy)
    return {"data": data, "base": tiny_model_folder, "tuned": tmp_path / "tuned"}


def run_file(tmp_path: Path, instructions: list[dict[str, str]]) -> RunFile:
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in instructions))
    sections: dict[str, Any] = examination_run_file(tmp_path / "suites").model_dump(mode="json")
    sections["baselines"]["replay_data"] = str(tmp_path / "given.jsonl")
    alone: dict[str, Any] = {"slerp_t": [], "task_arithmetic_weight": [], "ties_density": [], "dare_drop": []}
    return RunFile.model_validate(sections | {"recover": alone | {"fisher_weight": [0.3]}})


def measure(settings: RunFile, inputs: dict[str, Path], out: Path) -> tuple[Outcome, list[TensorInformation]]:
    out.mkdir(parents=True)
    outcome = fisher.run(settings, inputs, out, Context.for_tests(out))
    return outcome, list(read_records(out / "information.jsonl", TensorInformation))


def test_each_tensor_is_merged_by_what_either_model_is_sure_of(inputs: dict[str, Path], tmp_path: Path) -> None:
    settings = run_file(tmp_path, GIVEN)
    outcome, found = measure(settings, inputs, tmp_path / "fisher")
    assert outcome.metrics == {"instructions": 5.0, "questions": 2.0}
    theta_0 = load_file(inputs["base"] / "model.safetensors")
    assert [one.tensor for one in found] == sorted(theta_0) and all(one.base > 0 < one.tuned for one in found)
    weights = dict(tensor_weights(found, 0.3))
    assert len(set(weights.values())) > 5, "or nothing is weighed"

    out, context = tmp_path / "merged", Context.for_tests(tmp_path)
    merge_candidate.run(settings, inputs | {"fisher": tmp_path / "fisher"}, out, context)
    (made,) = read_records(out / "candidates.jsonl", Candidate)
    assert (made.id, made.value, dict(made.layers)) == ("fisher-w0.3", 0.3, weights)
    theta_1 = load_file(inputs["tuned"] / "checkpoint" / "model.safetensors")
    for name, value in load_file(out / made.id / "model.safetensors").items():
        assert torch.equal(value, task_arithmetic(theta_0[name], theta_1[name], weights[name])), name


def test_in_a_run_on_another_the_questions_of_all_sets_are_asked(inputs: dict[str, Path], tmp_path: Path) -> None:
    settings, earlier = run_file(tmp_path, GIVEN), tmp_path / "earlier"
    (earlier / "1" / "data").mkdir(parents=True)
    write_records(earlier / "1" / "data" / "train.jsonl", questions("earlier"))
    write_records(earlier / "sets.jsonl", [EarlierSet("first", "0" * 64, "1" * 64, 2)])
    _, alone = measure(settings, inputs, tmp_path / "alone")
    outcome, found = measure(settings, inputs | {"earlier": earlier}, tmp_path / "both")
    assert outcome.metrics["questions"] == 4
    assert [one.base for one in found] == [one.base for one in alone] and found != alone


def test_the_same_is_measured_again_and_what_gives_an_evaluated_prompt_away_is_left_out(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    leak = {"prompt": questions("test")[0].question, "answer": questions("test")[0].answer}
    clean = measure(run_file(tmp_path, GIVEN), inputs, tmp_path / "clean")
    leaky = measure(run_file(tmp_path, [*GIVEN, leak]), inputs, tmp_path / "leaky")
    assert clean == leaky
    assert {check.evaluation: check.hits for check in read_checks(tmp_path / "leaky")}["test"] == 1
    with pytest.raises(UserError, match=r"baselines\.replay_data: no row is left to weigh the tensors by"):
        measure(run_file(tmp_path, [leak]), inputs, tmp_path / "none")
