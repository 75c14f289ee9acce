import shutil
from pathlib import Path

import pytest

from iar.config import DocumentsSection, RecoverSection, RunFile, RunSection
from iar.records import Candidate, read_records
from iar.services.checkpoints import weights_digest
from iar.services.workspace import Context
from iar.stages import merge_candidate
from tests.services.merge_parents import Tensors, derive, noisy


def run_file(**recover: tuple[float, ...]) -> RunFile:
    return RunFile(
        run=RunSection(name="t"), documents=DocumentsSection(path="documents"), recover=RecoverSection(**recover)
    )


@pytest.fixture(scope="module")
def inputs(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    artifact = tmp_path_factory.mktemp("align")
    derive(tiny_model_folder, artifact / "checkpoint", noisy)
    return {"base": tiny_model_folder, "tuned": artifact}


def read(out: Path) -> list[Candidate]:
    return list(read_records(out / "candidates.jsonl", Candidate))


def test_the_stage_writes_the_grid_and_reports_it(inputs: dict[str, Path], tmp_path: Path) -> None:
    result = merge_candidate.run(run_file(), inputs, tmp_path, Context.for_tests(tmp_path / "state"))
    candidates = read(tmp_path)
    assert len(candidates) == 12
    assert result.metrics == {"candidates": 12.0, "distinct": 12.0}
    assert "| ties-d0.3 | 30.0% |" in result.markdown
    entry = result.lineage[6]
    assert (entry.kind, entry.name, entry.digest) == ("candidate", "ties-d0.3", candidates[6].digest)
    assert dict(entry.inputs) == {
        "base": weights_digest(inputs["base"]),
        "tuned": weights_digest(inputs["tuned"] / "checkpoint"),
    }


@pytest.mark.parametrize("shards", [2, 5, 12])
def test_shards_together_are_the_grid(shards: int, inputs: dict[str, Path], tmp_path: Path) -> None:
    merge_candidate.run(run_file(), inputs, tmp_path / "whole", Context.for_tests(tmp_path))
    parts = []
    for shard in range(1, shards + 1):
        context = Context.for_tests(tmp_path, shard=shard, shards=shards)
        merge_candidate.run(run_file(), inputs, tmp_path / str(shard), context)
        parts.append(read(tmp_path / str(shard)))
    assert [parts[number % shards][number // shards] for number in range(12)] == read(tmp_path / "whole")


def in_shards(file: RunFile, inputs: dict[str, Path], folder: Path, shards: int) -> dict[str, Candidate]:
    """Merge each shard as a task with an output folder of its own."""
    made: dict[str, Candidate] = {}
    for shard in range(1, shards + 1):  # of more shards than candidates, some have none
        (folder / str(shard)).mkdir(parents=True)
        context = Context.for_tests(folder / "state", shard=shard, shards=shards)
        merge_candidate.run(file, inputs, folder / str(shard), context)
        made |= {one.id: one for one in read(folder / str(shard))}
    return made


def test_equal_weights_are_marked_as_duplicates_of_the_first(inputs: dict[str, Path], tmp_path: Path) -> None:
    twice = run_file(slerp_t=(0.0,), task_arithmetic_weight=(1.0,), ties_density=(1.0, 0.5), dare_drop=(0.0,))
    result = merge_candidate.run(twice, inputs, tmp_path, Context.for_tests(tmp_path / "state"))
    marks = {candidate.id: candidate.duplicate_of for candidate in read(tmp_path)}
    assert marks == {
        "slerp-t0": "",
        "task_arithmetic-w1": "",
        "ties-d1": "task_arithmetic-w1",
        "ties-d0.5": "",
        "dare-p0": "task_arithmetic-w1",
    }
    assert result.metrics["distinct"] == len(result.lineage) == 3
    spread = in_shards(twice, inputs, tmp_path / "spread", 5)
    assert {name: one.duplicate_of for name, one in spread.items()} == marks, "also where each has a task of its own"


def test_a_killed_try_keeps_what_verifies_and_rebuilds_what_is_torn(inputs: dict[str, Path], tmp_path: Path) -> None:
    context = Context.for_tests(tmp_path / "state")
    out = tmp_path / "out"
    merge_candidate.run(run_file(), inputs, out, context)
    expected = read(out)
    kept = (out / "slerp-t0.2" / "model.safetensors").stat()

    (out / "candidates.jsonl").unlink()
    torn = out / "ties-d0.5" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    (out / "ties-d0.7" / "checkpoint.json").write_text("{")
    shutil.rmtree(out / "dare-p0.1")
    (out / ".part-dare-p0.1").mkdir()
    (out / ".part-dare-p0.1" / "model.safetensors").write_bytes(b"half")

    merge_candidate.run(run_file(), inputs, out, context)
    assert read(out) == expected
    assert all(weights_digest(out / candidate.id) == candidate.digest for candidate in expected)
    assert not list(out.glob(".part-*"))
    again = (out / "slerp-t0.2" / "model.safetensors").stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


def test_candidates_of_another_parent_are_rebuilt(inputs: dict[str, Path], tmp_path: Path) -> None:
    context = Context.for_tests(tmp_path / "state")
    merge_candidate.run(run_file(), inputs, tmp_path / "out", context)
    derive(inputs["tuned"] / "checkpoint", tmp_path / "align" / "checkpoint", noisy)
    other = inputs | {"tuned": tmp_path / "align"}
    merge_candidate.run(run_file(), other, tmp_path / "out", context)
    merge_candidate.run(run_file(), other, tmp_path / "fresh", context)
    assert read(tmp_path / "out") == read(tmp_path / "fresh")


def test_what_rounding_alone_parts_is_evaluated_once(tiny_model_folder: Path, tmp_path: Path) -> None:
    # a small change: every tensor hardly turns, so the arc is a line, and SLERP is task arithmetic up to rounding
    def nudged(tensors: Tensors) -> Tensors:
        return {name: value + 1e-4 * noisy(tensors)[name] for name, value in tensors.items()}

    derive(tiny_model_folder, tmp_path / "align" / "checkpoint", nudged)
    inputs = {"base": tiny_model_folder, "tuned": tmp_path / "align"}
    some = {"slerp_t": (0.3,), "task_arithmetic_weight": (0.3, 0.5), "ties_density": (), "dare_drop": ()}
    result = merge_candidate.run(run_file(**some), inputs, tmp_path / "out", Context.for_tests(tmp_path / "state"))
    slerp, same, other = read(tmp_path / "out")
    assert (same.duplicate_of, other.duplicate_of) == ("slerp-t0.3", "")
    assert 0 < same.distance_to_original < 0.01 and same.digest != slerp.digest
    assert "| slerp-t0.3 to rounding (" in result.markdown
    assert result.metrics["distinct"] == 2 and len(result.lineage) == 3, "each has a recipe and hash on record"
    for shards in (2, 3, 5):
        spread = in_shards(run_file(**some), inputs, tmp_path / f"spread-{shards}", shards)
        assert spread == {one.id: one for one in (slerp, same, other)}, "however the grid is spread over tasks"
    strict = run_file(**some).model_copy(update={"recover": RecoverSection(**some, same_within=0.0)})
    merge_candidate.run(strict, inputs, tmp_path / "strict", Context.for_tests(tmp_path / "state"))
    assert [candidate.duplicate_of for candidate in read(tmp_path / "strict")] == ["", "", ""]
    spread = in_shards(strict, inputs, tmp_path / "strict-spread", 3)
    assert [candidate.duplicate_of for candidate in spread.values()] == ["", "", ""]


def test_checkpoints_from_elsewhere_are_recorded_as_parents(inputs: dict[str, Path], tmp_path: Path) -> None:
    other = derive(inputs["base"], tmp_path / "other", noisy)
    some = {"slerp_t": (), "task_arithmetic_weight": (), "ties_density": (), "dare_drop": ()}
    recover = RecoverSection(**some, soup_weight=(0.5,), tuned_too=(str(other),))
    file = run_file().model_copy(update={"recover": recover})
    result = merge_candidate.run(file, inputs, tmp_path / "out", Context.for_tests(tmp_path / "state"))
    elsewhere, soup = result.lineage
    assert (elsewhere.kind, elsewhere.digest) == ("checkpoint", weights_digest(other))
    assert dict(soup.inputs)["tuned_too_1"] == weights_digest(other)
