"""The dtype of matrix products follows the processor's instructions, the number of processes its cores."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _pytest.monkeypatch import MonkeyPatch

from iar.services import hardware
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


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 6), (None, 6)]
)
def test_a_containers_limit_counts_as_its_cores(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(hardware, "QUOTA", tmp_path / "cpu.max")
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert hardware.usable_cores() == cores


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is torch's there")
@pytest.mark.parametrize(
    ("given", "spins"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "30000000000")]
)
def test_threads_wait_for_each_other_without_spinning_long_unless_told_otherwise(
    given: dict[str, str], spins: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    asked = [sys.executable, "-c", "import iar, torch"]
    environment = kept | given | {"OMP_DISPLAY_ENV": "VERBOSE"}
    told = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stderr
    (found,) = re.findall(r"GOMP_SPINCOUNT = '(\d+|INFINITY)'", told)
    assert found == spins
