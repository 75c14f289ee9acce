"""Replies to the demo's evaluations by several models, one after the other: our engine against lm-eval's `hf` backend.

    python benchmarks/bench_generation.py [--models 15] [--questions 100] [--probes 120] [--max-tokens 128]

The prompts are the demo's own questions and its probes, rendered once and the same for both sides, each with its
suite's limit. Both sides load every model anew (the base model, each time), in a process of their own, in the same
dtype and batch size; loading counts. Greedy replies may fork where two tokens are nearly equal: the share of equal
ones is shown.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from iar.config import ModelSection, RunFile
from iar.methods.chat import render_prompt
from iar.records import EvalItem, QAPair, Reply, read_records, write_json, write_records
from iar.services.engines import engine_opener
from iar.services.hardware import compute_dtype
from iar.services.models import load_tokenizer, resolve_base
from iar.services.run_files import load_run_file
from iar.services.subjects import Subject
from iar.services.suites import domain_items, load_suites
from iar.services.workspace import Context

DEMO = Path("pipelines") / "runs" / "demo.yaml"
SIDES = ("ours", "peer")
LEAST_RATIO = 1.5


def demo_items(run_file: RunFile, folder: Path, questions: int, probes: int, most_tokens: int) -> list[EvalItem]:
    """Return the demo's validation questions and its probes, the first of each suite, in the suites' order."""
    from iar.stages import qa_build

    qa_build.run(run_file, {}, folder, Context.for_tests(folder))
    pairs = list(read_records(folder / "validation.jsonl", QAPair))[:questions]
    suites = list(load_suites(run_file).values())
    share = [probes * len(items) // sum(map(len, suites)) for items in suites]
    chosen = [item for items, count in zip(suites, share, strict=True) for item in items[:count]]
    items = [*domain_items(pairs, run_file), *chosen]
    return [replace(item, max_new_tokens=min(item.max_new_tokens, most_tokens)) for item in items]


def ours(model: Path, items: list[EvalItem], models: int, batch: int) -> list[Reply]:
    """Answer with `models` models, as the evaluation stage does; return the last one's replies."""
    data = load_run_file(DEMO).model_dump()
    data["evaluate"]["batch_size"] = batch
    open_engine = engine_opener(RunFile.model_validate(data), model)
    for number in range(models):
        replies = list(open_engine(Subject(f"model-{number}", model, "")).generate(items))
    return replies


def peer(model: Path, items: list[EvalItem], models: int, batch: int) -> list[Reply]:
    """The same through lm-eval's `hf` backend."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    tokenizer = load_tokenizer(model)
    instances = [
        Instance(
            request_type="generate_until",
            doc={},
            arguments=(
                render_prompt(tokenizer, item.prompt, None),
                {"until": [], "max_gen_toks": item.max_new_tokens, "do_sample": False},
            ),
            idx=number,
        )
        for number, item in enumerate(items)
    ]
    for _ in range(models):
        backend = HFLM(pretrained=str(model), dtype=compute_dtype("auto"), batch_size=batch, device=_device())
        texts = backend.generate_until(instances, disable_tqdm=True)
    return [Reply(item.id, text.strip(), 0, truncated=False) for item, text in zip(items, texts, strict=True)]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def run_side(side: str, model: Path, items: Path, models: int, batch: int) -> tuple[float, dict[str, str]]:
    """Run one side in a process of its own; return its seconds, imports left out, and the texts by item."""
    out = items.with_name(f"{side}.json")
    command = [sys.executable, __file__, "--side", side, "--model", str(model), "--items", str(items)]
    command += ["--models", str(models), "--batch", str(batch), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-4000:]}")
    result = json.loads(out.read_text())
    return float(result["seconds"]), dict(result["texts"])


def work(options: argparse.Namespace) -> None:
    """Be one side: generate, and write what it took."""
    import torch  # noqa: F401 - imports of both sides are left out
    import transformers  # noqa: F401

    items = list(read_records(options.items, EvalItem))
    side = {"ours": ours, "peer": peer}[options.side]
    start = time.perf_counter()
    replies = side(options.model, items, options.models, options.batch)
    seconds = time.perf_counter() - start
    write_json(options.out, {"seconds": seconds, "texts": {reply.item_id: reply.text for reply in replies}})


def measure(run_file: RunFile, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the entry of results.json, in seconds for all models."""
    (model := folder / "model").mkdir()
    resolve_base(ModelSection(source=options.source), model)
    items = demo_items(run_file, folder / "data", options.questions, options.probes, options.max_tokens)
    write_records(folder / "items.jsonl", items)
    took, texts = {}, {}
    for side in SIDES:
        took[side], texts[side] = run_side(side, model, folder / "items.jsonl", options.models, options.batch)
    same = sum(texts["ours"][item.id] == texts["peer"][item.id] for item in items)
    sizes = {name: getattr(options, name) for name in ("source", "models", "batch", "max_tokens")}
    return {
        **took,
        "ratio": took["peer"] / took["ours"],
        "bound": None,
        "unit": "s",
        "sizes": sizes | {"items": len(items)},
        "same_replies": same / len(items),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }


def table(entry: dict[str, Any]) -> str:
    """Return the entry as one line to read."""
    sizes = entry["sizes"]
    kept = "kept" if entry["ratio"] >= LEAST_RATIO else "NOT kept"
    return (
        f"generation, {sizes['models']} models x {sizes['items']} prompts, batch {sizes['batch']}: "
        f"ours {entry['ours']:.1f} s, lm-eval hf {entry['peer']:.1f} s, ratio {entry['ratio']:.2f} (at least "
        f"{LEAST_RATIO:g} {kept}); {entry['same_replies']:.1%} of the replies are the same"
    )


def main() -> None:
    """Print one line, and write it as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="smollm2-135m-instruct", help="known name, folder or hub id")
    parser.add_argument("--models", type=int, default=15)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--probes", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=SIDES, help="be one side, on --model and --items")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--items", type=Path)
    options = parser.parse_args()
    if options.side:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        entry = measure(load_run_file(DEMO), options, Path(folder))
    print(table(entry))
    if options.out:
        write_json(options.out, {"generation": entry})


if __name__ == "__main__":
    main()
