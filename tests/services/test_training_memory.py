"""The memory estimate: near the true peak of a real training, and in the right order over its settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iar.config import ModelSection, TrainingSection
from iar.methods.batching import TokenRow
from iar.services.adapters import LoraSettings
from iar.services.model_shapes import SHAPES, ModelShape, shape_of
from iar.services.train_engines import EngineName
from iar.services.trainer import Trainer
from iar.services.training_memory import estimate
from tests.services import memory_rank
from tests.services.memory_rank import STEPS, most_allocated, rows_of

# The estimate counts tensors by rule; the true peak also holds what is alive for one operation only.
FACTOR = 1.2

shapes = st.sampled_from(sorted(SHAPES)).map(SHAPES.__getitem__)
tokens = st.integers(16, 65_536)
engines = st.sampled_from(["single", "ddp", "zero2", "zero3"])
dtypes = st.sampled_from(["bfloat16", "float32"])


def settings_with(micro_batch_tokens: int, dtype: str, checkpointing: bool = False) -> TrainingSection:
    return TrainingSection.model_validate(
        {
            "micro_batch_tokens": micro_batch_tokens,
            "sequence_length": micro_batch_tokens,
            "compute_dtype": dtype,
            "activation_checkpointing": checkpointing,
        }
    )


def total(shape: ModelShape, settings: TrainingSection, engine: EngineName, ranks: int) -> float:
    return estimate(shape, settings, engine, ranks).total


def peak_bytes(
    folder: Path, settings: TrainingSection, rows: list[TokenRow], adapter: LoraSettings | None = None
) -> int:
    """Return the most bytes that tensors held while the model was loaded and made two steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        trainer = Trainer(folder, settings, adapter=adapter)
        for _ in range(STEPS):
            trainer.step(rows, 1e-3)
    return most_allocated(profile)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("micro_batch_tokens", [64, 1024, 4096])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_near_the_true_peak(
    tiny_model_folder: Path, dtype: str, micro_batch_tokens: int, checkpointing: bool
) -> None:
    settings = settings_with(micro_batch_tokens, dtype, checkpointing)
    length = min(micro_batch_tokens, 256)
    # Two passes: the first one's gradients are there in the second.
    rows = rows_of(2 * micro_batch_tokens // length, length)
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    estimated = 1e9 * total(shape, settings, "single", 1)
    measured = peak_bytes(tiny_model_folder, settings, rows)
    assert measured / FACTOR < estimated < measured * FACTOR


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_the_estimate_counts_a_row_longer_than_a_pass(tiny_model_folder: Path, checkpointing: bool) -> None:
    settings = settings_with(64, "float32", checkpointing).model_copy(update={"sequence_length": 512})
    rows = rows_of(4, 512)
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    measured = peak_bytes(tiny_model_folder, settings, rows)
    for pass_tokens in (None, 512):
        estimated = 1e9 * estimate(shape, settings, "single", 1, pass_tokens=pass_tokens).total
        assert measured / FACTOR < estimated < measured * FACTOR


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_near_the_true_peak_of_an_adapter(
    tiny_model_folder: Path, dtype: str, checkpointing: bool
) -> None:
    pytest.importorskip("peft")
    settings, adapter = settings_with(1024, dtype, checkpointing), LoraSettings(4, 8.0, 0)
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    estimated = 1e9 * estimate(shape, settings, "single", 1, adapter).total
    measured = peak_bytes(tiny_model_folder, settings, rows_of(4, 256), adapter)
    assert measured / FACTOR < estimated < measured * FACTOR


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_near_the_true_peak_of_each_of_two_ranks(
    tiny_model_folder: Path, tmp_path: Path, dtype: str, engine: EngineName
) -> None:
    if engine != "ddp":
        pytest.importorskip("deepspeed")
    settings, out = settings_with(1024, dtype), tmp_path / "peak.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        memory_rank.__file__,
    ]
    command += [str(tiny_model_folder), settings.model_dump_json(), engine, str(out)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, check=True, capture_output=True, env=variables)
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    measured = json.loads(out.read_text())
    assert measured / FACTOR < 1e9 * total(shape, settings, engine, 2) < measured * FACTOR


@given(shapes, tokens, tokens, dtypes, engines, st.integers(1, 64))
def test_more_tokens_a_pass_never_take_less(
    shape: ModelShape, one: int, other: int, dtype: str, engine: EngineName, ranks: int
) -> None:
    fewer, more = sorted([one, other])
    least, most = settings_with(fewer, dtype), settings_with(more, dtype)
    assert total(shape, least, engine, ranks) <= total(shape, most, engine, ranks)


@given(shapes, tokens, dtypes, st.booleans(), st.integers(2, 256))
def test_an_engine_that_divides_more_takes_no_more(
    shape: ModelShape, count: int, dtype: str, checkpointing: bool, ranks: int
) -> None:
    settings = settings_with(count, dtype, checkpointing)
    zero3, zero2, ddp = (total(shape, settings, engine, ranks) for engine in ("zero3", "zero2", "ddp"))
    single = total(shape, settings, "single", 1)
    # One process that computes in fp32 keeps no masters beside its weights.
    assert zero3 <= zero2 <= ddp and (single < ddp if dtype == "float32" else single == ddp)


@given(shapes, tokens, dtypes, st.sampled_from(["zero2", "zero3"]), st.integers(2, 128))
def test_more_ranks_never_take_more_of_each(
    shape: ModelShape, count: int, dtype: str, engine: EngineName, ranks: int
) -> None:
    settings = settings_with(count, dtype)
    assert total(shape, settings, engine, 2 * ranks) <= total(shape, settings, engine, ranks)


@given(shapes, tokens, dtypes, engines)
def test_recomputing_activations_takes_no_more(shape: ModelShape, count: int, dtype: str, engine: EngineName) -> None:
    kept, recomputed = (estimate(shape, settings_with(count, dtype, on), engine, 8) for on in (False, True))
    assert recomputed.total <= kept.total
    assert recomputed.states == kept.states


def test_the_states_of_a_replica_are_eighteen_bytes_a_weight_and_of_zero3_a_part() -> None:
    shape = SHAPES["meta-llama/Llama-3.2-3B-Instruct"]
    settings = settings_with(16, "bfloat16")
    assert estimate(shape, settings, "single", 1).states == pytest.approx(18 * shape.parameters / 1e9)
    part = estimate(shape, settings, "zero3", 64)
    assert part.states - part.buffers == pytest.approx(18 * shape.parameters / 64e9)
