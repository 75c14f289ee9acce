"""Training on one GPU: speed, share of the GPU's peak and memory, of a 3B-class model with random weights.

    python benchmarks/gpu_check.py [--seconds 30]

Takes a few minutes and prints one JSON line. Needs no model and no network, about 10 GB of disk and 20 GB of memory.
A GPU too small for 28 layers gets fewer, and the line says how many. Without a GPU it says so and exits 0; `--on-cpu`
runs the same code on a model of two small layers.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iar.config import TrainingSection
from iar.methods.batching import TokenRow
from iar.services.model_shapes import SHAPES, ModelShape
from iar.services.telemetry import device_peak, flop_shape, peak_memory, step_flops
from iar.services.trainer import Trainer
from iar.services.training_fit import this_machine
from iar.services.training_memory import estimate

LARGE = SHAPES["meta-llama/Llama-3.2-3B-Instruct"]
SMALL = ModelShape(106_816, 2, 64, 128, 64, 32, 512)
HEAD_SIZE = 128
WARM_UP_STEPS = 2
RATE = 1e-5
PASSES = 4
SHARED = 32
"""Tokens that all rows begin with, as the prompts of chats do."""
KERNELS = ("::_scaled_dot_product", "flash_attn", "FlashAttn", "ShortAttention")
"""Parts of the names that attention has in torch's profiler."""


def settings_for(tokens: int, checkpointing: bool, dtype: str) -> TrainingSection:
    """Return the settings of one measurement."""
    return TrainingSection.model_validate(
        {
            "micro_batch_tokens": tokens,
            "sequence_length": tokens,
            "activation_checkpointing": checkpointing,
            "compute_dtype": dtype,
        }
    )


def fitting_shape(shape: ModelShape, tokens: int, capacity_gb: float) -> ModelShape:
    """Return the shape with as many layers as fit with activation checkpointing, at least one."""
    settings = settings_for(tokens, checkpointing=True, dtype="bfloat16")
    embedding = shape.hidden * (shape.vocabulary + 1)
    layer = (shape.parameters - embedding) // shape.layers
    for layers in range(shape.layers, 1, -1):
        smaller = replace(shape, layers=layers, parameters=embedding + layers * layer)
        if estimate(smaller, settings, "single", 1).total <= capacity_gb:
            return smaller
    return replace(shape, layers=1, parameters=embedding + layer)


def save_random(shape: ModelShape, device: torch.device, dtype: torch.dtype, folder: Path) -> None:
    """Write a Llama of this shape with random weights and tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    head_size = min(HEAD_SIZE, shape.keys // 2)
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.queries // head_size,
        num_key_value_heads=shape.keys // head_size,
        head_dim=head_size,
        vocab_size=shape.vocabulary,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    )
    torch.manual_seed(17)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder)


def random_rows(count: int, length: int, vocabulary: int) -> list[TokenRow]:
    """Return rows that begin alike, by SHARED tokens or an eighth, and whose last three quarters are trained."""
    generator = torch.Generator().manual_seed(17)
    tokens_RT = torch.randint(0, vocabulary, (count, length), generator=generator)
    shared = min(SHARED, length // 8)
    tokens_RT[:, :shared] = tokens_RT[0, :shared]
    tokens = tokens_RT.tolist()
    return [TokenRow(f"row-{number}", "qa", tuple(row), length // 4) for number, row in enumerate(tokens)]


def attention_kernels(trainer: Trainer, rows: list[TokenRow]) -> list[str]:
    """Return the attention kernels that a step runs forward; one with `math` in its name holds all scores at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer.step(rows, RATE)
    names = [event.key for event in profile.key_averages() if "ackward" not in event.key]
    return sorted(name for name in names if any(part in name for part in KERNELS))


def measure(
    folder: Path, tokens: int, lengths: list[int], checkpointing: bool, dtype: str, seconds: float
) -> list[dict[str, Any]]:
    """Return one record for each length of rows, all with the same trainer; a pass holds `tokens` tokens."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(folder, settings_for(tokens, checkpointing, dtype))
    config = trainer.model.config
    sizes = flop_shape(config, trainer.parameters)
    peak = device_peak(trainer.device, trainer.compute_dtype)
    found = []
    for length in lengths:
        rows = random_rows(PASSES * tokens // length, length, config.vocab_size)
        kernels = attention_kernels(trainer, rows)
        for _ in range(WARM_UP_STEPS):
            trainer.step(rows, RATE)
        steps, started = 0, time.monotonic()
        while not steps or time.monotonic() - started < seconds:
            trainer.step(rows, RATE)
            steps += 1
        step_seconds = (time.monotonic() - started) / steps
        rate = step_flops(sizes, rows) / step_seconds
        found.append(
            {
                "row_tokens": length,
                "pass_tokens": tokens,
                "attention": kernels,
                "activation_checkpointing": checkpointing,
                "tokens_per_second": round(PASSES * tokens / step_seconds, 1),
                "tflops": round(rate / 1e12, 3),
                "mfu": round(rate / peak, 4) if peak else None,
                "peak_gb": round(peak_memory(trainer.device) / 1e9, 3),
            }
        )
    return found


def check(device: torch.device, shape: ModelShape, tokens: int, seconds: float) -> dict[str, Any]:
    """Return the whole check: with activation checkpointing, and without where the estimate says it fits."""
    on_gpu = device.type == "cuda"
    capacity_gb = this_machine(1).total_gb
    dtype = "bfloat16" if on_gpu else "float32"
    estimates = {on: estimate(shape, settings_for(tokens, on, dtype), "single", 1).total for on in (True, False)}
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_random(shape, device, getattr(torch, dtype), folder)
        for checkpointing, estimated in estimates.items():
            if estimated > capacity_gb:
                continue
            for run in measure(folder, tokens, [tokens, tokens // 8], checkpointing, dtype, seconds):
                runs.append(run | {"estimated_gb": round(estimated, 3)})
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "parameters": shape.parameters,
        "layers": shape.layers,
        "compute_dtype": dtype,
        "runs": runs,
    }


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each of up to four measurements")
    parser.add_argument("--tokens", type=int, default=4096, help="in one forward pass, and in the longest row")
    parser.add_argument("--on-cpu", action="store_true", help="run the check itself on a tiny model")
    options = parser.parse_args()
    if options.on_cpu:
        print(json.dumps(check(torch.device("cpu"), SMALL, options.tokens, options.seconds)))
    elif not torch.cuda.is_available():
        print(json.dumps({"device": None, "skipped": "no GPU here: nothing was measured"}))
    else:
        shape = fitting_shape(LARGE, options.tokens, this_machine(1).total_gb)
        print(json.dumps(check(torch.device("cuda"), shape, options.tokens, options.seconds)))


if __name__ == "__main__":
    main()
