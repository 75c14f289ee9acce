"""The QA build with the rule-based teacher over synthetic documents: documents/s, and memory as documents are added.

    python -m benchmarks.bench_qa_build [--documents 2000 8000] [--blocks 3000]

A document is a row of some 470 characters about a thing of its own, from which rules ask six questions or so. Memory is
the peak of the process that builds, a process a size, before the registry takes anything up.
Two kinds of memory grow: a little a document, and the blocks of held-out questions that others are compared with, until
they are full (docs/qa-build.md). So each size is built twice: with the blocks as they are, and with blocks of --blocks
questions, which the smallest size fills; between those peaks lies what the documents themselves take.
"""

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.methods import near_index
from iar.records import write_json
from iar.services import qa_decontamination
from iar.services.workspace import Context
from iar.stages import qa_build

ROOT = Path(__file__).parents[1]
SYLLABLES = ("ba", "del", "fi", "gor", "lu", "mar", "ne", "pil", "ro", "sun", "ta", "vel", "wi", "xan", "yo", "zet")
FUNCTION = ("the", "a", "of", "and", "to", "by", "with", "for", "on", "under")
THINGS = ("Lock", "Ferry", "Quarry", "Foundry", "Granary", "Archive", "Bridge", "Ropewalk")
UNITS = ("crowns", "metres", "tons", "days", "barrels")
MIB = 1 << 20


def corpus(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield rows of `title` and `text`: six sentences of words drawn at random, each with a name, a year or an amount.

    Sentences off one template would be as like each other as no prose is, and every question be compared with all.
    """
    draw = random.Random(seed)

    def word() -> str:
        return draw.choice(FUNCTION) if draw.random() < 0.4 else "".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))

    def name() -> str:
        return "".join(draw.choices(SYLLABLES, k=3)).capitalize()

    def fact() -> str:
        facts = (f"{name()} {name()}", f"{draw.randint(1400, 1950)}", f"{draw.randint(2, 900)} {draw.choice(UNITS)}")
        return draw.choice(facts)

    def sentence() -> str:
        words = [word() for _ in range(12)]
        words[draw.randrange(3, 11)] = fact()
        return f"The {' '.join(words)}."

    for _ in range(count):
        paragraphs = [f"{sentence()} {sentence()}" for _ in range(3)]
        yield {"title": f"The {name()} {draw.choice(THINGS)} of {name()}", "text": "\n\n".join(paragraphs)}


def work(path: Path, out: Path, block: int) -> dict[str, float]:
    """Build the dataset of a file in this process; return seconds, MiB before and at the peak, and what came of it.

    `block`: most held-out questions compared with at once, 0 = as shipped.
    """
    if block:
        qa_decontamination.HELD_OUT = near_index.BLOCK = block
    run_file = RunFile.model_validate(
        {
            "run": {"name": "bench"},
            "documents": {"path": str(path), "columns": {"title": "title"}},
            "evaluate": {
                name: str(ROOT / "examples" / "probes" / f"{name}.jsonl") for name in ("ifeval", "mmlu", "msbench")
            },
        }
    )
    before = _peak()
    start = time.perf_counter()
    made = qa_build.run(run_file, {}, out, Context.for_tests(out)).metrics
    seconds = time.perf_counter() - start
    held_out = made["validation"] + made["test"]
    return {"seconds": seconds, "before": before, "peak": _peak(), "questions": made["pairs"], "held_out": held_out}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(sizes: list[int], block: int, folder: Path) -> dict[str, Any]:
    """Return the entry of results.json; sizes in documents."""
    found: dict[str, dict[str, dict[str, float]]] = {"shipped": {}, "small": {}}
    for count in sizes:
        path = folder / f"{count}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in corpus(count))
        for name, size in {"shipped": 0, "small": block}.items():
            (out := folder / f"{count}-{name}").mkdir()
            command = [sys.executable, "-m", "benchmarks.bench_qa_build", "--work", str(path), str(out), str(size)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{count} documents: {done.stderr[-2000:]}")
            found[name][str(count)] = json.loads(done.stdout)
    least, most = str(min(sizes)), str(max(sizes))
    small = found["small"]
    grown = (small[most]["peak"] - small[least]["peak"]) * MIB / max(1, max(sizes) - min(sizes))
    shipped = found["shipped"][most]
    return {
        "ours": shipped["peak"],
        "unit": "MiB",
        "bytes_a_document": grown,
        "documents_per_second": max(sizes) / shipped["seconds"],
        "sizes": found,
        "block": block,
        "machine": platform.platform(),
    }


def main() -> None:
    """Print a line a build and one for the growth, and write them as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--blocks", type=int, default=3000)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.work:
        path, out, block = options.work
        print(json.dumps(work(Path(path), Path(out), int(block))))
        return
    with tempfile.TemporaryDirectory() as name:
        entry = measure(options.documents, options.blocks, Path(name))
    for blocks, sizes in entry["sizes"].items():
        for count, one in sizes.items():
            print(
                f"qa-build, {count} documents, {blocks} blocks: {one['questions']:.0f} questions, "
                f"{one['held_out']:.0f} held out, {float(count) / one['seconds']:.1f} documents/s, "
                f"peak {one['peak']:.0f} MiB ({one['before']:.0f} before)"
            )
    print(f"qa-build, with full blocks of {entry['block']}: {entry['bytes_a_document'] / 1000:.1f} kB more a document")
    if options.out:
        write_json(options.out, {"qa-build": entry})


if __name__ == "__main__":
    main()
