"""The figures of a step: their arithmetic, the count of operations against torch's own, spikes of the loss."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from iar.methods.batching import TokenRow
from iar.services.packing import pad_rows
from iar.services.telemetry import (
    SPIKE_LEAST_STEPS,
    FlopShape,
    LossWatch,
    Meter,
    StepLog,
    device_peak,
    flop_shape,
    named_peak,
    robust_z,
    step_flops,
)
from iar.services.train_engines import batch_loss
from tests.training_rows import ROWS

CPU = torch.device("cpu")
MATRIX_PRODUCTS = ("mm", "addmm")


def test_operations_are_those_that_torch_counts(tiny_model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder, attn_implementation="eager", dtype=torch.float32)
    shape = flop_shape(model.config, sum(weight.numel() for weight in model.parameters()))
    row = ROWS[2]
    with FlopCounterMode(display=False) as counter:
        batch_loss(model, pad_rows([row], 1, CPU))[0].backward()
    counted = {str(operator).removeprefix("aten."): flops for operator, flops in counter.flop_counts["Global"].items()}
    products = sum(counted.get(name, 0) for name in MATRIX_PRODUCTS)
    attention = counted["bmm"]
    ours = step_flops(shape, [row])
    alone = step_flops(FlopShape(0, 0, shape.layers, shape.queries), [row])
    assert ours - alone == pytest.approx(products, rel=0.01), "norms are no matrix products"
    assert 2 * alone == pytest.approx(attention, rel=0.01), "eager attention computes the future too"


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Some accelerator", None),
    ],
)
def test_the_peak_is_that_of_the_device_by_name(name: str, peak: float | None) -> None:
    assert named_peak(name) == peak


def test_a_processor_has_no_known_peak() -> None:
    assert device_peak(CPU, "bfloat16") is None


def test_a_step_is_measured_in_its_own_units() -> None:
    row = TokenRow("a", "qa", tuple(range(1, 11)), 4)
    meter = Meter(FlopShape(100, 50, 1, 8), 1e6, tokens_left=40)
    facts = meter.step([row, row], positions=25, seconds=2.0)
    assert facts["tokens"] == 20 and facts["target_tokens"] == 12
    assert facts["tokens_per_second"] == 10 and facts["target_tokens_per_second"] == 6
    assert facts["positions_per_second"] == 12.5 and facts["efficiency"] == pytest.approx(0.8)
    assert facts["eta_seconds"] == pytest.approx(2.0)
    operations = 2 * (6 * (100 * 10 + 50 * 6) + 6 * 1 * 8 * 100)
    assert facts["mfu"] == pytest.approx(operations / 2.0 / 1e6)
    assert "mfu" not in Meter(FlopShape(1, 1, 1, 1), None, 20).step([row], 10, 1.0)


def test_a_deviation_is_measured_against_median_and_spread() -> None:
    before = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert robust_z(1.0, before) == 0
    assert robust_z(2.0, before) == pytest.approx(1.0 / (0.05 / 0.6745))
    assert robust_z(1.001, [1.0] * 20) < 1, "a loss that stands still makes no alarm of rounding"


def test_a_spike_is_told_and_does_not_hide_the_next() -> None:
    calm = [2.0 - 0.01 * step + 0.05 * (-1) ** step for step in range(40)]
    watch = LossWatch(6.0, calm)
    assert watch.spike(1.6) == 0
    assert watch.spike(5.0) > 6
    assert watch.spike(5.0) > 6
    assert watch.spike(0.1) == 0, "a fall is no spike"


def test_no_spike_is_told_before_there_are_steps_to_compare_with() -> None:
    watch = LossWatch(6.0)
    assert not any(watch.spike(1.0 if step else 99.0) for step in range(SPIKE_LEAST_STEPS))


def test_the_log_drops_what_lies_past_the_restart_point(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    log.truncate(0)
    for step in range(1, 5):
        log.append({"step": step})
    with log.path.open("a") as file:
        file.write('{"step": 5, "torn')
    log.truncate(3)
    assert [facts["step"] for facts in log.read()] == [1, 2, 3]


def test_a_follower_waits_for_the_file_of_the_next_training(tmp_path: Path) -> None:
    writer, follower = StepLog(tmp_path / "steps.jsonl"), StepLog(tmp_path / "steps.jsonl")
    for step in range(1, 5):
        writer.append({"step": step})
    follower.follow()
    assert follower.new() == [], "an earlier try's lines may be cut at any moment"
    writer.truncate(2)
    writer.append({"step": 3})
    assert [facts["step"] for facts in follower.new()] == [1, 2, 3]


def test_a_follower_sees_each_whole_line_once(tmp_path: Path) -> None:
    writer, follower = StepLog(tmp_path / "steps.jsonl"), StepLog(tmp_path / "steps.jsonl")
    assert follower.new() == []
    writer.append({"step": 1})
    with writer.path.open("a") as file:
        file.write('{"step"')
    assert follower.new() == [{"step": 1}]
    with writer.path.open("a") as file:
        file.write(": 2}\n")
    assert follower.new() == [{"step": 2}] and follower.new() == []
