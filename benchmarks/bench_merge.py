"""Twelve candidates: one streaming pass against mergekit's per-tensor functions, run once a candidate.

    python benchmarks/bench_merge.py [--rows 4096] [--tensors 6]

Both sides read the same two checkpoints and write twelve safetensors files; ours hashes them and takes the
distances too.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from iar.config import RecoverSection
from iar.methods.merge_grid import Recipe, grid
from iar.records import write_json
from iar.services.merge_stream import merge_candidates

PEER_METHODS = {"slerp": "slerp", "task_arithmetic": "task_arithmetic", "ties": "ties", "dare": "dare_linear"}
COLUMNS = 1024


def make_parents(folder: Path, tensors: int, rows: int) -> tuple[Path, Path]:
    """Write two bf16 checkpoints of `tensors` matrices, rows x 1024, that differ by small noise."""
    generator = torch.Generator().manual_seed(0)
    base = {f"layer.{number}.weight": torch.randn(rows, COLUMNS, generator=generator) for number in range(tensors)}
    tuned = {name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in base.items()}
    for name, weights in (("base", base), ("tuned", tuned)):
        (folder / name).mkdir()
        save_file({key: value.bfloat16() for key, value in weights.items()}, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text('{"tie_word_embeddings": true}')
    return folder / "base", folder / "tuned"


def peer_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return mergekit's parameters for the same merge."""
    return {
        "slerp": {"t": recipe.value},
        "task_arithmetic": {"weight": recipe.value},
        "ties": {"density": recipe.value, "weight": 1.0, "normalize": False},
        "dare": {"density": 1 - recipe.value, "weight": 1.0, "normalize": False},
    }[recipe.operator]


def merge_with_peer(base: Path, tuned: Path, recipes: list[Recipe], out: Path) -> None:
    """Run mergekit's `merge_tensors` on every tensor of every candidate, in fp32, as its own command does."""
    from mergekit.merge_methods.api import merge_tensors

    out.mkdir()
    for recipe in recipes:
        theta_0, theta_1 = load_file(base / "model.safetensors"), load_file(tuned / "model.safetensors")
        merged = {
            name: merge_tensors(
                [theta_0[name].float(), theta_1[name].float()],
                PEER_METHODS[recipe.operator],
                parameters=peer_parameters(recipe),
                base_index=0,
                out_dtype=torch.bfloat16,
            )
            for name in theta_0
        }
        save_file(merged, out / f"{recipe.id}.safetensors")


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print one line, and write it as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--tensors", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    recipes = grid(RecoverSection(), seed=17)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, tuned = make_parents(folder, options.tensors, options.rows)
        ours = seconds(lambda: merge_candidates(base, tuned, recipes, folder / "ours", {}))
        peer = seconds(lambda: merge_with_peer(base, tuned, recipes, folder / "peer"))
    elements = options.tensors * options.rows * COLUMNS
    print(
        f"merge, 12 candidates of {elements / 1e6:.0f}M weights: "
        f"ours {ours:.1f} s, mergekit {peer:.1f} s, ratio {peer / ours:.1f}"
    )
    if options.out:
        sizes = {"weights": elements, "tensors": options.tensors, "candidates": len(recipes)}
        entry = {"ours": ours, "peer": peer, "ratio": peer / ours, "unit": "s", "sizes": sizes}
        write_json(options.out, {"merge": entry | {"machine": platform.platform()}})


if __name__ == "__main__":
    main()
