"""Training: the product's loop against TRL's SFTTrainer, the same token rows, model, dtype rule and machine.

    python benchmarks/bench_train.py [--model smollm2-135m-instruct] [--rows 48] [--steps 6]

Each side runs in a process of its own, one after the other. Speed is in real tokens a second, padding not counted;
the first step of each side warms up and is left out. The bound is what the measured rate of matrix products allows.
Needs the extra `bench`.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from iar.config import DocumentsSection, ModelSection
from iar.methods.batching import TokenRow
from iar.methods.chunking import chunk_document
from iar.methods.objectives import chunk_passages, reconstruction_rows
from iar.records import write_json
from iar.services.ingest import read_documents
from iar.services.model_shapes import shape_of
from iar.services.models import load_tokenizer, resolve_base
from iar.services.rows import tokenise
from iar.services.telemetry import flop_shape, step_flops

FOLDER = Path(__file__).parent
WORKER = FOLDER / "train_worker.py"
DOCUMENTS = FOLDER.parent / "examples" / "documents"
RECIPE = (3, 0, 1)
CHUNK_CHARACTERS = 700
SEED = 17
SIDES = ("ours", "trl-unpacked", "trl-packed")
COST_SIDES = ("ours", "trl-unpacked")
PROMPT_TOKENS = 16


def demo_rows(model: Path, count: int, sequence: int) -> list[TokenRow]:
    """Return `count` of the demo's Inject rows in a seeded order."""
    documents, _ = read_documents(DocumentsSection(path=str(DOCUMENTS)))
    chunks = [chunk for document in documents for chunk in chunk_document(document, CHUNK_CHARACTERS)]
    examples = reconstruction_rows(chunk_passages(documents, chunks, []), RECIPE, SEED)
    rows, _ = tokenise(examples, load_tokenizer(model), None, sequence)
    random.Random(SEED).shuffle(rows)
    if len(rows) < count:
        raise SystemExit(f"--rows {count}: the documents give {len(rows)}; ask for at most as many")
    return rows[:count]


def long_rows(rows: list[TokenRow], length: int, count: int) -> list[TokenRow]:
    """Return `count` rows of exactly `length` tokens, cut from all rows end to end."""
    stream = [token for row in rows for token in row.token_ids]
    stream *= -(-length * count // len(stream))
    cuts = [tuple(stream[number * length : (number + 1) * length]) for number in range(count)]
    return [TokenRow(f"long-{number}", "qa", cut, PROMPT_TOKENS) for number, cut in enumerate(cuts)]


def work(job: dict[str, Any], folder: Path, rows: list[TokenRow]) -> dict[str, Any]:
    """Run one worker on `rows` and return what it measured."""
    name = f"{job['side']}-{job['sequence']}"
    path = folder / f"{name}.rows"
    lines = [json.dumps(row.__dict__) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    file = folder / f"{name}.json"
    write_json(file, job | {"rows": str(path), "out": str(folder / name)})
    done = subprocess.run([sys.executable, str(WORKER), str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job['side']} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(file.with_suffix(".result").read_text())
    return result


def flops_per_token(model: Path, parameters: int, rows: list[TokenRow]) -> float:
    """Return the operations of forward and backward a real token, averaged over the rows."""
    from transformers import AutoConfig

    sizes = flop_shape(AutoConfig.from_pretrained(model), parameters)
    return step_flops(sizes, rows) / sum(len(row.token_ids) for row in rows)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run every side, the costs by length, the profile and the rate of matrix products; return the entry."""
    model = folder / "model"
    resolve_base(ModelSection(source=options.model), model)
    shape = shape_of(ModelSection(source=str(model)))
    if shape is None:
        raise SystemExit(f"--model {options.model}: its config.json lacks the sizes of a decoder")
    rows = demo_rows(model, options.rows, options.sequence)
    job = {"model": str(model), "rows_in_step": options.batch, "steps": options.steps, "sequence": options.sequence}
    sides = {side: work(job | {"side": side}, folder, rows) for side in SIDES}
    gemm = work(job | {"side": "gemm"}, folder, rows)
    profile = work(job | {"side": "profile"}, folder, rows)
    cost: dict[str, dict[str, float]] = {}
    for length in options.lengths:
        single = job | {"rows_in_step": 1, "steps": options.cost_steps, "sequence": length}
        long = long_rows(rows, length, options.cost_steps)
        speeds = {side: work(single | {"side": side}, folder, long)["tokens_per_second"] for side in COST_SIDES}
        cost[str(length)] = {side: 1000 / speed for side, speed in speeds.items()}
    peer = max(sides["trl-unpacked"]["tokens_per_second"], sides["trl-packed"]["tokens_per_second"])
    ours = sides["ours"]["tokens_per_second"]
    return {
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer,
        "bound": gemm["flops"] / flops_per_token(model, shape.parameters, rows),
        "unit": "tokens/s",
        "sizes": {"model": options.model, "parameters": shape.parameters, "rows": len(rows), "batch": options.batch},
        "sides": sides,
        "milliseconds_per_token": cost,
        "profile": profile,
        "gemm_gflops": gemm["flops"] / 1e9,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }


def table(entry: dict[str, Any]) -> str:
    """Return the entry as lines to read."""
    lines = [f"{'':14}{'tokens/s':>10}{'peak GB':>10}{'loss':>8}  dtype"]
    for side, one in entry["sides"].items():
        lines.append(
            f"{side:14}{one['tokens_per_second']:>10.1f}{one['peak_gb']:>10.2f}{one['final_loss']:>8.3f}"
            f"  {one['compute_dtype']}"
        )
    lines.append(f"ratio {entry['ratio']:.2f} against the faster peer")
    lines.append(
        f"bound {entry['bound']:.0f} tokens/s at {entry['gemm_gflops']:.0f} GFLOP/s of matrix products; "
        f"ours reaches {entry['ours'] / entry['bound']:.0%}"
    )
    for length, costs in entry["milliseconds_per_token"].items():
        lines.append(f"sequence {length:>5}: " + ", ".join(f"{side} {ms:.2f} ms a token" for side, ms in costs.items()))
    parts = ", ".join(f"{name} {share:.0%}" for name, share in entry["profile"]["share"].items() if share >= 0.005)
    lines.append(f"a step of ours: {parts}")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write the entry as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="known name, folder or hub id")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--steps", type=int, default=6, help="most optimizer steps of a side, the warm-up included")
    parser.add_argument("--batch", type=int, default=8, help="rows a step; the packed peer has one packed row a step")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens of a packed row, and of one of our passes")
    parser.add_argument("--lengths", type=int, nargs="*", default=[256, 1024, 4096], help="for the cost of a token")
    parser.add_argument("--cost-steps", type=int, default=2, help="steps at each length, the warm-up included")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        entry = measure(options, Path(name))
    print(table(entry))
    if options.out:
        write_json(options.out, {"train": entry})


if __name__ == "__main__":
    main()
