"""Ingestion, file filter and duplicates over synthetic documents; duplicates beside datasketch at equal recall.

    python benchmarks/bench_ingest.py [--documents 10000 100000]

The corpus is JSONL, English and Chinese, of about 2 kB a document; a tenth of it is planted near-duplicates, a
hundredth exact ones, as many junk. Memory is the peak of the process that ingests, a process a size. The bound of the
speed is reading, normalising and writing each document without looking at it. Needs the extra `bench`.
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

import numpy as np

from iar.config import DocumentsSection
from iar.methods.digest import digest_text
from iar.methods.near_duplicates import SEED, find_twins, signatures
from iar.methods.textnorm import character_ngrams, jaccard, normalise
from iar.records import write_json
from iar.services.hardware import usable_cores
from iar.services.ingest import DISTINCT, ingest
from iar.services.reject_log import RejectLog, read_rejects

THRESHOLD = 0.8
PERMUTATIONS = 128
PEER_DOCUMENTS = 2000
SYLLABLES = [
    "ba",
    "de",
    "fi",
    "go",
    "lu",
    "ma",
    "ne",
    "pi",
    "ro",
    "su",
    "ta",
    "ve",
    "wi",
    "xo",
    "ya",
    "ze",
    "kor",
    "lin",
    "mar",
    "ten",
]
HAN = (
    "山川水火木金土日月星辰东西南北春夏秋冬风雨雷电天地人和江河湖海城镇村庄灯塔桥梁道路船舶渔民商人工匠学者年代历史建筑"
)


def corpus(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield rows of `id` and `text`; the id of a planted duplicate names what it is a copy of."""
    generator = random.Random(seed)
    recent: list[tuple[str, str]] = []
    for number in range(count):
        kind = generator.random()
        if recent and kind < 0.11:
            original, text = generator.choice(recent)
            if kind < 0.1:
                text = _touched(text, generator)
            yield {"id": f"{number}-of-{original}", "text": text}
            continue
        if kind < 0.12:
            yield {"id": f"{number}-junk", "text": "\n".join(["Home", "About us", "Products", "Contact"] * 20)}
            continue
        text = _prose(generator, HAN, "", "。") if number % 3 == 2 else _prose(generator, SYLLABLES, " ", ". ")
        recent = [*recent[-99:], (str(number), text)]
        yield {"id": str(number), "text": text}


def _prose(generator: random.Random, parts: Any, space: str, end: str) -> str:
    lines = []
    for _ in range(8):
        sentences = (
            space.join("".join(generator.choices(parts, k=generator.randint(1, 3))) for _ in range(12)) + end
            for _ in range(3)
        )
        lines.append("".join(sentences).strip())
    return "\n\n".join(lines)


def _touched(text: str, generator: random.Random) -> str:
    """Change three places of a text, and so at most 30 of its 5-grams."""
    for _ in range(3):
        place = generator.randrange(len(text))
        text = f"{text[:place]}x{text[place + 1 :]}"
    return text


def work(path: Path, out: Path) -> dict[str, float]:
    """Ingest a file in this process; return seconds, and peaks of memory in MiB: before, after, of a helper."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    with RejectLog(out / "rejects.parquet") as rejects:
        settings = DocumentsSection.model_validate({"path": str(path), "columns": {"id": "id"}})
        found = ingest(settings, out, rejects, 17, processes=usable_cores())
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    helper = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    planted = [reject for reject in read_rejects(out / "rejects.parquet") if reject.step == DISTINCT]
    return {
        "seconds": seconds,
        "before": before,
        "peak": peak,
        "helper": helper,
        "kept": found.documents,
        "duplicates": len(planted),
    }


def copying_seconds(path: Path, out: Path) -> float:
    """Return how long it takes to parse, normalise and write the rows, which no way around can do without."""
    start = time.perf_counter()
    with path.open(encoding="utf-8") as rows, out.open("w", encoding="utf-8") as file:
        for line in rows:
            row = json.loads(line)
            normalise(row["text"])
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return time.perf_counter() - start


def side_by_side(count: int) -> dict[str, Any]:
    """Find the near-duplicates of `count` documents with ours and with datasketch; the truth is every pair compared."""
    texts = [normalise(row["text"]) for row in corpus(count, seed=1)]
    grams = [character_ngrams(text) for text in texts]
    truth = _true_duplicates(texts, grams)

    start = time.perf_counter()
    digests = np.array([bytes.fromhex(digest_text(text)[:32]) for text in texts], "V16")
    twins, _ = find_twins(signatures(texts), digests, THRESHOLD, lambda one, two: jaccard(grams[one], grams[two]))
    ours = time.perf_counter() - start

    start = time.perf_counter()
    found = _by_datasketch(texts, grams)
    peer = time.perf_counter() - start
    recall = [len(truth & dropped) / len(truth) for dropped in (set(twins), found)]
    false = [len(dropped - truth) for dropped in (set(twins), found)]
    return {"ours": ours, "peer": peer, "recall": recall, "false": false, "true": len(truth), "documents": count}


def _true_duplicates(texts: list[str], grams: list[frozenset[str]]) -> set[int]:
    """Return the documents that have an earlier survivor at least as similar as the threshold."""
    kept: list[int] = []
    dropped: set[int] = set()
    for number, mine in enumerate(grams):
        near = (other for other in kept if 0.8 <= len(mine) / len(grams[other]) <= 1.25)
        if any(jaccard(mine, grams[other]) >= THRESHOLD for other in near):
            dropped.add(number)
        else:
            kept.append(number)
    return dropped


def _by_datasketch(texts: list[str], grams: list[frozenset[str]]) -> set[int]:
    """The same by datasketch: its signatures, its index tuned for recall, the same exact check."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS, weights=(0.05, 0.95))
    dropped: set[int] = set()
    for number, text in enumerate(texts):
        sketch = MinHash(num_perm=PERMUTATIONS, seed=SEED)
        sketch.update_batch([text[at : at + 5].encode() for at in range(max(1, len(text) - 4))])
        if any(jaccard(grams[number], grams[other]) >= THRESHOLD for other in index.query(sketch)):
            dropped.add(number)
        else:
            index.insert(number, sketch)
    return dropped


def measure(sizes: list[int], peer_documents: int, folder: Path) -> dict[str, Any]:
    """Return the entries of results.json."""
    found = {}
    for count in sizes:
        path, out = folder / f"{count}.jsonl", folder / f"{count}-out"
        out.mkdir()
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in corpus(count))
        command = [sys.executable, str(Path(__file__)), "--work", str(path), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{count} documents: {done.stderr[-2000:]}")
        megabytes = path.stat().st_size / 1e6
        result = json.loads(done.stdout)
        copied = copying_seconds(path, folder / "copy.jsonl")
        found[str(count)] = result | {
            "documents_per_second": count / result["seconds"],
            "megabytes_per_second": megabytes / result["seconds"],
            "bound_documents_per_second": count / copied,
        }
    pair = side_by_side(peer_documents)
    largest = found[str(max(sizes))]
    machine = platform.platform()
    return {
        "ingest": {
            "ours": largest["documents_per_second"],
            "bound": largest["bound_documents_per_second"],
            "unit": "documents/s",
            "sizes": found,
            "machine": machine,
        },
        "near-duplicates": {
            "ours": pair["ours"],
            "peer": pair["peer"],
            "ratio": pair["peer"] / pair["ours"],
            "unit": "s",
            "sizes": {name: pair[name] for name in ("documents", "true", "recall", "false")},
            "machine": machine,
        },
    }


def main() -> None:
    """Print a line a size and one beside datasketch, and write them as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--peer-documents", type=int, default=PEER_DOCUMENTS)
    parser.add_argument("--work", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work)))
        return
    with tempfile.TemporaryDirectory() as name:
        entries = measure(options.documents, options.peer_documents, Path(name))
    for count, one in entries["ingest"]["sizes"].items():
        print(
            f"ingest, {count} documents: {one['documents_per_second']:.0f} documents/s, "
            f"{one['megabytes_per_second']:.2f} MB/s (bound {one['bound_documents_per_second']:.0f} documents/s), "
            f"{one['kept']} kept, {one['duplicates']} duplicates, "
            f"peak {one['peak']:.0f} MiB ({one['before']:.0f} before), of each helping process {one['helper']:.0f} MiB"
        )
    pair = entries["near-duplicates"]
    print(
        f"near-duplicates of {pair['sizes']['documents']} documents: ours {pair['ours']:.2f} s, datasketch "
        f"{pair['peer']:.2f} s, ratio {pair['ratio']:.1f}; recall {pair['sizes']['recall'][0]:.4f} and "
        f"{pair['sizes']['recall'][1]:.4f}, false {pair['sizes']['false']}"
    )
    if options.out:
        write_json(options.out, entries)


if __name__ == "__main__":
    main()
