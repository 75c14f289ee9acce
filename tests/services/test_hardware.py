"""The dtype of matrix products follows what the processor has instructions for."""

import platform

import pytest
import torch
from _pytest.monkeypatch import MonkeyPatch

from iar.services.hardware import compute_dtype


@pytest.mark.parametrize(
    ("machine", "avx512_bf16", "amx", "mkldnn", "wanted"),
    [
        ("x86_64", False, False, False, torch.float32),
        ("x86_64", False, False, True, torch.float32),  # AVX-512 without bfloat16: the library emulates it
        ("x86_64", True, False, True, torch.bfloat16),
        ("x86_64", False, True, True, torch.bfloat16),
        ("aarch64", False, False, True, torch.bfloat16),
        ("arm64", False, False, False, torch.float32),
    ],
)
def test_bfloat16_is_chosen_only_where_the_processor_multiplies_it(
    monkeypatch: MonkeyPatch, machine: str, avx512_bf16: bool, amx: bool, mkldnn: bool, wanted: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn)
    assert compute_dtype() == wanted
    assert compute_dtype("bfloat16") == torch.bfloat16
    assert compute_dtype("float32") == torch.float32
