"""What does not fit is refused in one line that names each part and what would fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile, TrainingSection
from iar.services import doctor, training_fit
from iar.services.adapters import LoraSettings
from iar.services.model_shapes import SHAPES
from iar.services.train_engines import EngineName
from iar.services.training_fit import GPU_GB, GPU_RESERVE_GB, Demand, Machine, demand, fewest, refusal, remedy

A100 = GPU_GB["40 GB"] - GPU_RESERVE_GB
PAPER = TrainingSection(micro_batch_tokens=4096, compute_dtype="bfloat16", activation_checkpointing=True)


def of_model(name: str, engine: EngineName, ranks: int, **settings: Any) -> Demand:
    return Demand(name, "inject", SHAPES[name], PAPER.model_copy(update=settings), engine, ranks)


def run_file(source: str, **platform: object) -> RunFile:
    training = {"micro_batch_tokens": 4096, "compute_dtype": "bfloat16"}
    return RunFile.model_validate(
        {
            "run": {"name": "x"},
            "model": {"source": source},
            "documents": {"path": "documents"},
            "inject": training | {"activation_checkpointing": True},
            "align": training,
            "platform": platform,
        }
    )


def test_a_training_that_fits_is_not_refused() -> None:
    need = of_model("Qwen/Qwen3-4B", "zero2", 8)
    assert refusal(need, Machine(8, A100, A100)) == ""


def test_a_refusal_names_the_parts_and_the_remedy_the_smallest_change() -> None:
    need = of_model("Qwen/Qwen3-4B", "ddp", 8)
    machine = Machine(8, A100, A100)
    line = refusal(need, machine)
    assert line.startswith(
        "inject: training Qwen/Qwen3-4B with engine ddp takes about 80.4 GB in each of 8 processes ("
    )
    assert "optimizer 32.2" in line
    assert line.endswith("and there are 40.3 GB")
    assert remedy(need, machine) == "set platform.training_engine=zero2"


@pytest.mark.parametrize(
    ("model", "engine", "settings", "advice"),
    [
        ("Qwen/Qwen3-4B", "zero2", {"activation_checkpointing": False}, "set inject.activation_checkpointing=true"),
        (
            "Qwen/Qwen3-8B",
            "ddp",
            {"activation_checkpointing": False},
            "set platform.training_engine=zero3 and inject.activation_checkpointing=true",
        ),
        ("Qwen/Qwen3-4B", "zero3", {"micro_batch_tokens": 131_072}, "set inject.micro_batch_tokens=32768"),
        (
            "Qwen/Qwen3-32B",
            "zero3",
            {},
            "choose a smaller model, or 32 GPUs of 40 GB with platform.training_engine=zero3 and "
            "inject.activation_checkpointing=true",
        ),
    ],
)
def test_a_remedy_fits(model: str, engine: EngineName, settings: dict[str, Any], advice: str) -> None:
    assert remedy(of_model(model, engine, 8, **settings), Machine(8, A100, A100)) == advice


def test_more_processes_than_gpus_are_refused() -> None:
    need, machine = of_model("Qwen/Qwen3-4B", "zero2", 8), Machine(1, A100, A100)
    assert refusal(need, machine) == ("platform.processes: 8 training processes, one a GPU, and this machine has 1")
    assert remedy(need, machine) == "set platform.processes=1, or run it where there are 8 GPUs"


def test_an_adapter_takes_little_more_than_the_frozen_weights() -> None:
    machine = Machine(1, A100, A100)
    whole = of_model("Qwen/Qwen3-8B", "single", 1)
    adapter = replace(whole, adapter=LoraSettings(16, 32.0, 0))
    assert refusal(whole, machine).startswith("inject: training Qwen/Qwen3-8B with engine single takes about 16")
    assert refusal(adapter, machine) == ""
    assert 16.4 < adapter.memory.total < 25, "8.2e9 weights in bfloat16, the factors' states, one pass"
    states = adapter.memory.masters + adapter.memory.gradients + adapter.memory.optimizer
    assert states == pytest.approx(16 * 16 * 36 * (7 * 4096 + 2 * (4096 + 1024) + 3 * 12_288) / 1e9)


def test_an_adapter_is_merged_in_the_machines_memory_where_there_is_no_gpu() -> None:
    adapter = replace(of_model("Qwen/Qwen3-8B", "ddp", 2), adapter=LoraSettings(16, 32.0, 0))
    line = refusal(adapter, Machine(0, A100, A100))
    assert line.startswith(
        "inject: training a LoRA adapter of Qwen/Qwen3-8B with engine ddp takes about 49.1 GB in each of 2 processes"
    )
    assert "or merge 49.1" in line
    assert remedy(adapter, Machine(0, A100, A100)).startswith("choose a smaller model, or 1 GPU of 40 GB with ")
    large = replace(of_model("Qwen/Qwen3-32B", "ddp", 2), adapter=LoraSettings(16, 32.0, 0))
    assert remedy(large, Machine(2, A100, A100)).startswith("choose a smaller model, or 1 GPU of 80 GB with ")


def test_the_hungrier_section_decides() -> None:
    need = demand(run_file("Qwen/Qwen3-4B", processes=8))
    assert need is not None
    assert (need.section, need.engine, need.ranks) == ("align", "ddp", 8)


def test_a_model_of_known_size_only_counts_its_states() -> None:
    need = demand(run_file("org/model-3B"))
    assert need is not None
    assert need.memory.total == pytest.approx(3 * 20)
    assert demand(run_file("org/model")) is None


def test_fewest_gpus_fit_and_one_less_power_of_two_does_not() -> None:
    for name in SHAPES:
        need = of_model(name, "ddp", 8)
        engine, ranks = fewest(need, GPU_GB["40 GB"])
        assert of_model(name, engine, ranks).memory.total <= 0.9 * A100
        if ranks > 2:
            assert of_model(name, "zero3", ranks // 2).memory.total > 0.9 * A100


def test_the_preflight_refuses_what_this_machine_cannot_hold(tmp_path: Path) -> None:
    check = doctor.check_memory(run_file("Qwen/Qwen3-32B"))
    assert check.status == "fail"
    assert check.detail.startswith("align: training Qwen/Qwen3-32B with engine single takes about 7")
    assert "GPUs of 40 GB with platform.training_engine=zero3" in check.fix


def test_the_memory_of_a_cluster_is_not_this_machines() -> None:
    check = doctor.check_memory(run_file("Qwen/Qwen3-32B", backend="kubeflow", processes=8, training_engine="zero3"))
    assert (check.status, check.detail) == ("pass", "about 199.6 GB for each of 8 training processes")


def test_memory_that_is_there_but_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: Machine(0, 200.0, 3.0))
    check = doctor.check_memory(run_file("Qwen/Qwen3-4B"))
    assert (check.status, check.fix) == ("warn", "close other programs, or lower micro_batch_tokens")


def test_processes_without_gpus_share_the_memory() -> None:
    one, four = training_fit.this_machine(1), training_fit.this_machine(4)
    if not one.gpus:
        assert four.total_gb == pytest.approx((one.total_gb + 1) / 4 - 1)
