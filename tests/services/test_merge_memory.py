"""How much memory a merge takes does not depend on how large the model is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SHAPE = (2048, 1024)
FP32_BYTES = 4 * SHAPE[0] * SHAPE[1]

MERGE = """
import json, sys, threading
from pathlib import Path
from iar.config import RecoverSection
from iar.methods.merge_grid import grid
from iar.services.merge_stream import MergeSettings, merge_candidates
import torch  # before the first look at the memory

def anonymous():
    return next(1024 * int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("RssAnon"))

ended, seen, before = threading.Event(), [0], anonymous()

def watch():
    while not ended.wait(0.005):
        seen.append(anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
recover = RecoverSection(slerp_t=(0.3,), task_arithmetic_weight=(0.5,), ties_density=(0.3, 0.7), dare_drop=(0.5,))
folders = [Path(place) for place in sys.argv[1:]]
merge_candidates(*folders[:2], grid(recover, 17), folders[2], {}, None, MergeSettings(threads=2))
ended.set()
watcher.join()
print(json.dumps(max(seen) - before))
"""


def parents(folder: Path, blocks: int, times: int) -> list[Path]:
    """Write two checkpoints of so many tensors, each `times` as tall as SHAPE."""
    generator = torch.Generator().manual_seed(3)
    places = [folder / "base", folder / "tuned"]
    for place in places:
        place.mkdir(parents=True)
        tensors = {
            f"model.layers.{block}.mlp.up_proj.weight": torch.randn(
                (times * SHAPE[0], SHAPE[1]), generator=generator
            ).bfloat16()
            for block in range(blocks)
        }
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        (place / "config.json").write_text("{}")
    return places


def peak_bytes(folder: Path, blocks: int, times: int) -> int:
    """Return the most memory beside that of files that a merge of these checkpoints took."""
    command = [sys.executable, "-c", MERGE, *map(str, parents(folder, blocks, times)), str(folder / "out")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return int(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_grows_neither_with_the_model_nor_with_its_largest_tensor(tmp_path: Path) -> None:
    small, deep, tall = (peak_bytes(tmp_path / f"{n}x{times}", n, times) for n, times in ((8, 1), (40, 1), (2, 20)))
    # What the allocator holds back varies by some blocks; the tall tensor is 168 MB in fp32.
    assert max(deep, tall) < small + 8 * FP32_BYTES, (small, deep, tall)
