"""Twelve candidates: one streaming pass against twelve runs of `mergekit-yaml`, as a user would start them.

    python benchmarks/bench_merge.py [--sizes 135m,1b] [--big-runs 12] [--folder /disk/with/80/GB]

Two pairs of checkpoints: SmolLM2-135M-Instruct with a perturbed copy, and a Llama-shaped model of 1.2 billion random
bfloat16 weights in several shards. Each side runs in processes of its own, which report their peak memory; the page
cache is told to drop the parents before each side. `--big-runs 4` runs mergekit on the large model once an operator
and multiplies; the line then says so. The bound is what the disk and memory take to copy as many bytes as a merge
must read and write, measured in the same run. Needs the extra `bench`.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from iar.config import ModelSection, RecoverSection
from iar.methods.merge_grid import Recipe, grid
from iar.records import write_json
from iar.services.direct_file import DirectFile
from iar.services.merge_mergekit import configuration
from iar.services.merge_stream import MergeSettings, merge_candidates
from iar.services.models import resolve_base

SEED = 17
SPREAD = 0.02  # of the perturbation, in standard deviations of a tensor
SHARD_BYTES = 1e9
COPY_BYTES = 1 << 24
LLAMA_1B = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True,
}  # fmt: skip


def main() -> None:
    """Print a line a size, and write the largest as `merge` with all sizes inside with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="135m,1b", help="of 135m, 1b, tiny")
    parser.add_argument("--big-runs", type=int, default=12, help="mergekit runs on the 1b model, at least one")
    parser.add_argument("--folder", type=Path, help="where models and candidates lie while it runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        WORKERS[options.worker[0]](*options.worker[1:])
        return
    entries = {}
    for size in options.sizes.split(","):
        runs = options.big_runs if size == "1b" else 12
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            entries[size] = compare(size, max(1, min(12, runs)), Path(name))
        print(line(size, entries[size]), flush=True)
    if options.out:
        largest = entries[list(entries)[-1]]
        summary = {key: largest[key] for key in ("ours", "peer", "ratio", "bound", "unit")}
        write_json(options.out, {"merge": summary | {"sizes": entries, "machine": platform.platform()}})


def compare(size: str, runs: int, folder: Path) -> dict[str, Any]:
    """Return what both sides took on a pair of checkpoints of this size."""
    base, tuned = folder / "base", folder / "tuned"
    # In a process of its own: what this one holds would count as the peak of those that it starts.
    timed([sys.executable, __file__, "--worker", "parents", size, str(folder)])
    recipes = grid(RecoverSection(), SEED)
    forget(base, tuned)
    ours = timed([sys.executable, __file__, "--worker", "merge", str(base), str(tuned), str(folder / "ours")])
    made = json.loads(ours["output"].splitlines()[-1])
    shutil.rmtree(folder / "ours")
    peers = []
    for recipe in spread(recipes, runs):
        forget(base, tuned)
        peers.append(timed(peer_command(recipe, base, tuned, folder)) | {"id": recipe.id})
        shutil.rmtree(folder / "peer")
    peer_seconds = scaled(peers, recipes)
    read, written = 2 * made["parent_bytes"], len(recipes) * made["parent_bytes"]
    copy_seconds = copy_bound(base, folder, read, written)
    return {
        "ours": ours["seconds"], "peer": peer_seconds, "ratio": peer_seconds / ours["seconds"], "unit": "s",
        "bound": copy_seconds, "bound_share": copy_seconds / ours["seconds"],
        "weights": made["weights"], "largest_tensor_bytes": made["largest"], "candidates": len(recipes),
        "peer_runs": len(peers), "peer_each": {one["id"]: one["seconds"] for one in peers},
        "peak_bytes": ours["peak"], "anonymous_peak_bytes": made["anonymous_peak"],
        "peer_peak_bytes": max(one["peak"] for one in peers),
        "least_read_bytes": read, "least_written_bytes": written,
        "read_bytes": made["read_bytes"], "written_bytes": made["written_bytes"],
    }  # fmt: skip


def line(size: str, entry: dict[str, Any]) -> str:
    """Return the result as one line."""
    some = entry["peer_runs"] < entry["candidates"]
    note = f" (scaled from {entry['peer_runs']} runs, one or more an operator)" if some else ""
    gb = {name: entry[f"{name}_bytes"] / 1e9 for name in ("peak", "peer_peak", "largest_tensor", "anonymous_peak")}
    moved = [entry[f"{name}_bytes"] / 1e9 for name in ("read", "least_read", "written", "least_written")]
    return (
        f"merge {size}, 12 candidates of {entry['weights'] / 1e6:.0f}M weights: ours {entry['ours']:.1f} s, "
        f"mergekit-yaml {entry['peer']:.1f} s{note}, ratio {entry['ratio']:.1f}; peak memory {gb['peak']:.2f} GB "
        f"(not file-backed {gb['anonymous_peak']:.2f}, largest tensor {gb['largest_tensor']:.2f}) against "
        f"{gb['peer_peak']:.2f} GB; disk read {moved[0]:.2f} GB of at least {moved[1]:.2f}, written {moved[2]:.2f} of "
        f"{moved[3]:.2f}; copying as much takes {entry['bound']:.1f} s, {entry['bound_share']:.0%} of ours"
    )


def make_parents(size: str, place: str) -> None:
    """Write both checkpoints of a size, in the Hugging Face layout, with a tokenizer."""
    folder = Path(place)
    base, tuned = folder / "base", folder / "tuned"
    smollm = folder / "smollm"
    resolve_base(ModelSection(), smollm)
    if size == "135m":
        smollm.rename(base)
    else:
        random_model(LLAMA_1B if size == "1b" else TINY, base)
        for pattern in ("tokenizer*", "chat_template*", "generation_config.json"):
            for path in smollm.glob(pattern):
                shutil.copyfile(path, base / path.name)
        shutil.rmtree(smollm)
    shutil.copytree(base, tuned)
    (base / "checkpoint.json").unlink(missing_ok=True)
    (tuned / "checkpoint.json").unlink(missing_ok=True)
    perturb(tuned)


def random_model(shape: dict[str, Any], folder: Path) -> None:
    """Write a Llama model of random bfloat16 weights in shards of 1 GB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = LlamaForCausalLM(LlamaConfig(**shape, dtype="bfloat16"))
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="1GB")


def perturb(folder: Path) -> None:
    """Add seeded noise to the weights of a folder, file by file."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(SEED)
    for path in sorted(folder.glob("*.safetensors")):
        moved = {}
        for name, value in load_file(path).items():
            noise = torch.randn(value.shape, generator=generator)
            moved[name] = (value.float() + SPREAD * value.float().std() * noise).to(value.dtype)
        save_file(moved, path, metadata={"format": "pt"})


def merge(base_place: str, tuned_place: str, out_place: str) -> None:
    """Merge the twelve in this process; print what it took as JSON."""
    from iar.services.checkpoints import MappedTensors

    base, tuned, out = Path(base_place), Path(tuned_place), Path(out_place)
    before = io_counts()
    with PeakOfAnonymous() as memory:
        merge_candidates(
            base, tuned, grid(RecoverSection(), SEED), out, {}, None, MergeSettings(shard_bytes=SHARD_BYTES)
        )
    os.sync()
    after, stored = io_counts(), MappedTensors(base).info.values()
    print(json.dumps({
        "parent_bytes": sum(info.bytes for info in stored), "largest": max(info.bytes for info in stored),
        "weights": sum(info.elements for info in stored), "anonymous_peak": memory.peak,
        "read_bytes": after["read_bytes"] - before["read_bytes"],
        "written_bytes": after["write_bytes"] - before["write_bytes"],
    }))  # fmt: skip


class PeakOfAnonymous:
    """The most memory of this process that is backed by no file, looked at twenty times a second."""

    def __enter__(self) -> "PeakOfAnonymous":
        import threading

        self.peak, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            found = next(row for row in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in row)
            self.peak = max(self.peak, 1024 * int(found.split()[1]))


def io_counts() -> dict[str, int]:
    """Return the bytes that this process has had read from and written to disks."""
    rows = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (row.split(": ") for row in rows)}


def timed(command: Sequence[str]) -> dict[str, Any]:
    """Run a command; return its seconds until what it wrote is on the disk, the peak of its resident memory in bytes,
    and what it printed."""
    started = time.perf_counter()
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        os.sync()
        took = time.perf_counter() - started
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{text[-3000:]}")
    return {"seconds": took, "peak": usage.ru_maxrss * 1024, "output": text}


def peer_command(recipe: Recipe, base: Path, tuned: Path, folder: Path) -> list[str]:
    """Return the command of one mergekit run, with its configuration written."""
    file = folder / "mergekit.yml"
    dtype = json.loads((base / "config.json").read_text())
    stored = str(dtype.get("dtype") or dtype.get("torch_dtype") or "float32")
    file.write_text(json.dumps(configuration(recipe, base, tuned, MergeSettings(), stored)))
    command = Path(sys.executable).parent / "mergekit-yaml"
    return [str(command), str(file), str(folder / "peer"), "--quiet", "--random-seed", str(SEED)]


def spread(recipes: Sequence[Recipe], count: int) -> list[Recipe]:
    """Return `count` of the recipes, of as many operators as possible."""
    by_turn = sorted(recipes, key=lambda one: [r.id for r in recipes if r.operator == one.operator].index(one.id))
    return by_turn[:count]


def scaled(runs: Sequence[dict[str, Any]], recipes: Sequence[Recipe]) -> float:
    """Return the seconds of all recipes: measured, else the mean of the same operator's runs, else of all runs."""
    measured = {run["id"]: float(run["seconds"]) for run in runs}
    everywhere = sum(measured.values()) / len(measured)
    total = 0.0
    for recipe in recipes:
        alike = [measured[one.id] for one in recipes if one.operator == recipe.operator and one.id in measured]
        total += measured.get(recipe.id) or (sum(alike) / len(alike) if alike else everywhere)
    return total


def forget(*folders: Path) -> None:
    """Tell the page cache to drop the files of the folders, and write out what waits."""
    os.sync()
    for folder in folders:
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy_bound(base: Path, folder: Path, read: int, written: int) -> float:
    """Return the seconds it takes to read `read` bytes of a checkpoint and to write `written` bytes, by the rates of
    reading the checkpoint once and writing it twice, around the page cache."""
    forget(base)
    data, count = bytearray(COPY_BYTES), 0
    started = time.perf_counter()
    for path in sorted(base.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(data):
                count += size
    reading = (time.perf_counter() - started) / max(1, count)
    started, target, times = time.perf_counter(), folder / "copy", max(1, 2 * count // COPY_BYTES)
    with closing(DirectFile(target, times * COPY_BYTES)) as file:
        for _ in range(times):
            file.write(data)
    os.sync()
    writing = (time.perf_counter() - started) / target.stat().st_size
    target.unlink()
    return read * reading + written * writing


WORKERS = {"parents": make_parents, "merge": merge}

if __name__ == "__main__":
    main()
