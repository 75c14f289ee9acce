"""What the machine can do: which dtype its processor multiplies, and how many cores are ours."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

ComputeDtype = Literal["auto", "bfloat16", "float32"]
# A container's share of the processor: microseconds it may run, and in how many. cgroup v2.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def compute_dtype(choice: ComputeDtype = "auto") -> "torch.dtype":
    """Return the dtype of matrix products: bfloat16 where the hardware multiplies it, else float32.

    A processor without bfloat16 instructions emulates them: seen on AVX2, 1 GFLOP/s in bfloat16, 148 in float32.
    """
    import torch

    if choice != "auto":
        return torch.bfloat16 if choice == "bfloat16" else torch.float32
    native = torch.cuda.is_bf16_supported() if torch.cuda.is_available() else _cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, and of them a container's limit; at least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = QUOTA.read_text(encoding="ascii").strip().partition(" ") if QUOTA.is_file() else ("max", "", "")
    return max(1, min(bound, round(int(quota) / int(period)))) if quota.isdecimal() else bound


def shape_multiple(device: "torch.device", dtype: "torch.dtype") -> int:
    """Return what the lengths of a training's batches are rounded up to.

    In bfloat16 on a CPU, oneDNN compiles a kernel for each new shape and keeps 1024 of them. Seen with a 135M model:
    a new length takes up to a second, and memory grew from 4 to 10 GB in 250 steps of unlike lengths.
    """
    import torch

    return 64 if device.type == "cpu" and dtype == torch.bfloat16 else 1


def _cpu_multiplies_bfloat16() -> bool:
    import torch

    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
