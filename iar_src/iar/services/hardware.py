"""What the machine can do: which dtype its processor multiplies."""

import platform
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

ComputeDtype = Literal["auto", "bfloat16", "float32"]


def compute_dtype(choice: ComputeDtype = "auto") -> "torch.dtype":
    """Return the dtype of matrix products: bfloat16 where the hardware multiplies it, else float32.

    A processor without bfloat16 instructions emulates them: seen on AVX2, 1 GFLOP/s in bfloat16, 148 in float32.
    """
    import torch

    if choice != "auto":
        return torch.bfloat16 if choice == "bfloat16" else torch.float32
    native = torch.cuda.is_bf16_supported() if torch.cuda.is_available() else _cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


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
