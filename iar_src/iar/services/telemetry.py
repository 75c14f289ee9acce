"""What a training tells while it runs: one JSON line a step, speed and use of the hardware, and a watch on its loss."""

import json
import math
import os
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.methods.batching import TokenRow

if TYPE_CHECKING:
    import torch

# Dense bfloat16 products in FLOP/s, from the makers' data sheets; the first name that the device's name contains.
PEAK_BY_DEVICE = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
}
SPIKE_WINDOW = 64
SPIKE_LEAST_STEPS = 16
# The median absolute deviation of a normal distribution, in standard deviations.
NORMAL_MAD = 0.6745
LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training reports.

    tokens: of all rows; positions: computed by the linear layers, padding included, a shared beginning once.
    spikes: steps whose loss stood out; memory_bytes: the largest peak of a rank. mfu is 0 where the peak is unknown.
    """

    steps: int
    tokens: int
    target_tokens: int
    final_loss: float
    seconds: float
    compute_dtype: str
    digest: str
    engine: str = "single"
    ranks: int = 1
    positions: int = 0
    spikes: tuple[int, ...] = ()
    memory_bytes: int = 0
    mfu: float = 0.0


@dataclass(frozen=True)
class FlopShape:
    """Sizes that decide the work of a step: weights of the blocks, of the head, layers, heads x head size."""

    block_parameters: int
    head_parameters: int
    layers: int
    queries: int


def flop_shape(config: Any, parameters: int) -> FlopShape:
    """Return the sizes of a model from its transformers config and its number of distinct parameters."""
    head = config.vocab_size * config.hidden_size
    outside = head if getattr(config, "tie_word_embeddings", False) else 2 * head
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return FlopShape(parameters - outside, head, config.num_hidden_layers, config.num_attention_heads * size)


def step_flops(shape: FlopShape, rows: Iterable[TokenRow]) -> float:
    """Return the floating point operations that training on `rows` takes, however they are computed.

    6 a weight and token: 2 forward, 4 backward; the head on target tokens only; causal attention over each row.
    """
    return sum((training_flops(shape, len(row.token_ids), row.target_length, len(row.token_ids)) for row in rows), 0.0)


def training_flops(shape: FlopShape, tokens: float, targets: float, row_tokens: float) -> float:
    """Return what training on `tokens` in rows of `row_tokens` takes, `targets` of which the loss falls on."""
    products = shape.block_parameters * tokens + shape.head_parameters * targets
    return 6.0 * (products + shape.layers * shape.queries * tokens * row_tokens)


def device_peak(device: "torch.device", compute_dtype: str) -> float | None:
    """Return the FLOP/s that the device is sold for in this dtype, None where it is not known."""
    if device.type != "cuda" or compute_dtype != "bfloat16":
        return None
    import torch

    return named_peak(torch.cuda.get_device_name(device))


def named_peak(name: str) -> float | None:
    """Return the bfloat16 FLOP/s of the device with this name, None where it is not in the table."""
    return next((peak for part, peak in PEAK_BY_DEVICE.items() if part in name), None)


def peak_memory(device: "torch.device") -> int:
    """Return the most bytes that this process has held on the device so far."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


class Meter:
    """Speed, efficiency and time left of a training, step by step. `peak` is of all ranks together, None = unknown."""

    def __init__(self, shape: FlopShape, peak: float | None, tokens_left: int) -> None:
        self._shape = shape
        self._peak = peak
        self._tokens_left = tokens_left
        self._tokens = 0
        self._seconds = 0.0

    def step(self, rows: Sequence[TokenRow], positions: int, seconds: float) -> dict[str, float]:
        """Return the figures of one step on `rows` that took `seconds` and computed `positions`.

        efficiency: tokens of rows for each token computed, below 1 by padding, above 1 by a shared beginning.
        """
        tokens = sum(len(row.token_ids) for row in rows)
        targets = sum(row.target_length for row in rows)
        self._tokens += tokens
        self._seconds += seconds
        self._tokens_left -= tokens
        facts = {
            "tokens": tokens,
            "target_tokens": targets,
            "positions": positions,
            "efficiency": tokens / positions,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "target_tokens_per_second": targets / seconds,
            "positions_per_second": positions / seconds,
            "eta_seconds": self._tokens_left * self._seconds / self._tokens,
        }
        if self._peak is not None:
            facts["mfu"] = step_flops(self._shape, rows) / seconds / self._peak
        return facts


def robust_z(value: float, before: Sequence[float]) -> float:
    """Return how far `value` lies above the median of `before`, in standard deviations estimated from its MAD.

    A spread below 1 % of the median counts as 1 %, so that a loss that stands still does not cry at noise.
    """
    median = statistics.median(before)
    spread = statistics.median(abs(one - median) for one in before) / NORMAL_MAD
    return (value - median) / max(spread, LEAST_SPREAD * abs(median), 1e-12)


class LossWatch:
    """Compares each loss with the SPIKE_WINDOW before it; median and MAD let single spikes among those pass by."""

    def __init__(self, threshold: float, losses: Iterable[float] = ()) -> None:
        self._threshold = threshold
        self._before: deque[float] = deque(maxlen=SPIKE_WINDOW)
        for loss in losses:
            self.spike(loss)

    def spike(self, loss: float) -> float:
        """Take in the next loss; return its deviation where it is a spike, else 0."""
        z = robust_z(loss, self._before) if len(self._before) >= SPIKE_LEAST_STEPS else 0.0
        self._before.append(loss)
        return z if z > self._threshold else 0.0


class StepLog:
    """One JSON line an optimizer step; lines past the restart point are dropped before going on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._passed_over: int | None = None

    def truncate(self, steps: int) -> None:
        """Keep the first `steps` lines; a torn last line goes with the rest."""
        lines = self.path.read_text().splitlines()[:steps] if self.path.exists() else []
        part = self.path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in lines))
        part.replace(self.path)

    def append(self, facts: dict[str, float]) -> None:
        """Add one step."""
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Return all steps, in order."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def follow(self) -> None:
        """Let `new` wait for the file that the next training puts in place of the one that is here."""
        self._offset = 0
        self._passed_over = self.path.stat().st_ino if self.path.exists() else None

    def new(self) -> list[dict[str, Any]]:
        """Return the whole lines written since the last call, by another process."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_ino == self._passed_over:
                return []
            file.seek(self._offset)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(lines)
        return [json.loads(line) for line in lines.splitlines()]


def step_note(facts: dict[str, float]) -> str:
    """Return one step of a log in words."""
    spike = f", spike of {facts['loss_spike_z']:.1f} deviations" if "loss_spike_z" in facts else ""
    return f"loss {facts['loss']:.3f}, {facts['tokens_per_second']:.0f} tokens/s{spike}"


def summarise(
    steps: Sequence[dict[str, Any]], compute_dtype: str, digest: str, engine: str, ranks: int
) -> TrainingResult:
    """Return the totals of a step log."""
    seconds = float(sum(step["seconds"] for step in steps))
    shares = [step["mfu"] * step["seconds"] for step in steps if "mfu" in step]
    return TrainingResult(
        steps=len(steps),
        tokens=int(sum(step["tokens"] for step in steps)),
        target_tokens=int(sum(step["target_tokens"] for step in steps)),
        final_loss=float(steps[-1]["loss"]),
        seconds=seconds,
        compute_dtype=compute_dtype,
        digest=digest,
        engine=engine,
        ranks=ranks,
        positions=int(sum(step["positions"] for step in steps)),
        spikes=tuple(step["step"] for step in steps if "loss_spike_z" in step),
        memory_bytes=max(step["memory_bytes"] for step in steps),
        mfu=math.fsum(shares) / seconds if shares else 0.0,
    )
