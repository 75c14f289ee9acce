"""What does not fit is refused in one line that names each part and what would fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.config import RunFile, TrainingSection
from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.services import doctor, training_fit
from iar.services.adapters import LoraSettings
from iar.services.model_shapes import SHAPES
from iar.services.train_engines import EngineName
from iar.services.training_fit import (
    GPU_GB,
    GPU_MEMORY_MIB,
    GPU_PRODUCT,
    GPU_RESERVE_GB,
    Demand,
    Machine,
    RowLengths,
    check_pool,
    demand,
    fewest,
    pool_machine,
    refusal,
    remedy,
    settings_that_fit,
)

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


def cluster(selector: dict[str, str], **pool: object) -> RunFile:
    """Return Qwen3-32B with ddp on 8 GPUs: 655 GB on each."""
    pool |= {"node_selector": selector}
    return run_file("Qwen/Qwen3-32B", backend="kubeflow", processes=8, training_engine="ddp", pool=pool)


@pytest.mark.parametrize(
    ("selector", "gb"),
    [
        ({GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB"}, 42.3),
        ({GPU_PRODUCT: "NVIDIA-A100-SXM4-80GB"}, 85.0),
        ({GPU_PRODUCT: "NVIDIA-A100-80GB-PCIe"}, 85.0),
        ({GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"}, 85.0),
        ({GPU_PRODUCT: "NVIDIA-H200"}, 150.0),
        ({GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}, 21.0),
        ({GPU_PRODUCT: "Tesla-V100-SXM2-32GB"}, 33.6),
        ({GPU_PRODUCT: "NVIDIA-L40S", GPU_MEMORY_MIB: "46068"}, 48.3),
        ({GPU_PRODUCT: "NVIDIA-L40S"}, None),
        ({"pool": "large"}, None),
        ({}, None),
    ],
)
def test_the_labels_of_a_pool_tell_its_gpus_memory(selector: dict[str, str], gb: float | None) -> None:
    machine = pool_machine(cluster(selector).platform)
    assert (machine and machine.total_gb) == (gb and pytest.approx(gb - GPU_RESERVE_GB, abs=0.05))


def test_a_pool_without_gpus_has_the_memory_of_its_pods() -> None:
    machine = pool_machine(cluster({}, gpu="", memory_gb_per_process=100.0).platform)
    assert machine is not None and (machine.gpus, round(machine.total_gb, 1)) == (0, 106.4)


def test_the_memory_of_a_cluster_is_that_of_its_pool_not_this_machines() -> None:
    check = doctor.check_memory(cluster({GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB"}))
    assert (check.status, check.detail.partition(" with engine ddp takes ")[0]) == (
        "fail", "align: training Qwen/Qwen3-32B"
    )  # fmt: skip
    assert check.detail.endswith("and there are 40.3 GB on NVIDIA-A100-SXM4-40GB")
    assert check.fix.startswith("choose a smaller model, or 32 GPUs of 40 GB with platform.training_engine=zero3 and ")
    fitting = run_file("Qwen/Qwen3-4B", backend="kubeflow", processes=64, training_engine="zero3")
    check = doctor.check_memory(fitting)
    assert check.status == "pass" and check.detail.endswith("40.3 GB on NVIDIA-A100-SXM4-40GB")


def test_a_pool_whose_gpus_are_unknown_is_said_and_refuses_nothing() -> None:
    run = cluster({"pool": "large"})
    check = doctor.check_memory(run)
    assert check.status == "warn"
    assert check.detail.endswith("the memory of the pool's GPUs is unknown (platform.pool.node_selector: pool=large)")
    check_pool(run)


def test_a_training_that_fits_no_gpu_of_the_pool_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"40\.3 GB on NVIDIA-A100-SXM4-40GB; choose .* 32 GPUs of 40 GB with"):
        check_pool(cluster({GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB"}))


def test_memory_that_is_there_but_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: Machine(0, 200.0, 3.0))
    check = doctor.check_memory(run_file("Qwen/Qwen3-4B"))
    assert (check.status, check.fix) == ("warn", "close other programs")
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: Machine(0, 200.0, 100.0))
    check = doctor.check_memory(run_file("Qwen/Qwen3-4B"))
    assert check.fix == "close other programs, or set align.activation_checkpointing=true"


SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def small(lengths: RowLengths | None = None, **settings: Any) -> Demand:
    training = TrainingSection(compute_dtype="float32").model_copy(update=settings)
    return Demand(SMALL, "align", SHAPES[SMALL], training, "single", 1, lengths=lengths)


def test_a_row_longer_than_a_pass_is_counted() -> None:
    assert small().memory == small(micro_batch_tokens=4096).memory
    assert small().memory.total > 1.3 * small(sequence_length=2048).memory.total


def test_known_rows_count_as_long_as_they_are() -> None:
    rows = [TokenRow(str(length), "qa", (1,) * length, 1) for length in (10, 100, 300, 20)]
    packed, padded = (RowLengths.of(rows, small(batch_size=2, packing=on).settings) for on in (True, False))
    assert (packed, padded) == (RowLengths(300, 400), RowLengths(300, 600))
    for micro, passing in ((200, 300), (350, 350), (2048, 400)):
        assert small(packed, micro_batch_tokens=micro).pass_tokens == passing


@given(
    st.integers(16, 8192),
    st.integers(16, 8192),
    st.booleans(),
    st.none() | st.tuples(st.integers(16, 8192), st.integers(1, 64)),
    st.floats(1.8, 12.0),
)
def test_settings_that_are_advised_fit_and_are_needed(
    micro: int, sequence: int, checkpointing: bool, rows: tuple[int, int] | None, gb: float
) -> None:
    lengths = RowLengths(min(rows[0], sequence), min(rows[0], sequence) * rows[1]) if rows else None
    need = small(lengths, micro_batch_tokens=micro, sequence_length=sequence, activation_checkpointing=checkpointing)
    machine = Machine(0, gb, gb)
    advice = settings_that_fit(need, machine)
    if not refusal(need, machine) or not advice:
        return
    assert advice.count("micro_batch_tokens") <= 1
    changes = dict(part.removeprefix("align.").split("=") for part in advice.split(" and "))
    update = {name: value == "true" if value == "true" else int(value) for name, value in changes.items()}
    changed = need.settings.model_copy(update=update)
    shorter = lengths and replace(lengths, longest=min(lengths.longest, changed.sequence_length))
    assert not refusal(replace(need, settings=changed, lengths=shorter), machine)
    row = lengths.longest if lengths else sequence
    assert changed.micro_batch_tokens >= min(row, micro) or "sequence_length" in changes, "a row would be a longer pass"


def test_a_row_that_does_not_fit_is_made_shorter() -> None:
    need = small(activation_checkpointing=True)
    assert settings_that_fit(need, Machine(0, 3.2, 3.2)).startswith("align.sequence_length=")
    known = small(RowLengths(3000, 200_000), activation_checkpointing=True, micro_batch_tokens=100_000)
    one_row = replace(known, settings=known.settings.model_copy(update={"micro_batch_tokens": 3000})).memory.total
    just = Machine(0, one_row / 0.9 + 0.001, 9.0)
    assert settings_that_fit(known, just) == "align.micro_batch_tokens=3000"
    less = Machine(0, one_row / 0.9 - 0.001, 9.0)
    assert settings_that_fit(known, less) == "align.sequence_length=1500 and align.micro_batch_tokens=1500"


def test_processes_without_gpus_share_the_memory() -> None:
    one, four = training_fit.this_machine(1), training_fit.this_machine(4)
    if not one.gpus:
        assert four.total_gb == pytest.approx((one.total_gb + 1) / 4 - 1)
