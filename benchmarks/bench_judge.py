"""Judging at scale: an LLM judge, 128 calls at once, against the ideal time; and statistics of a large vote archive.

    python -m benchmarks.bench_judge [--judgements 10000] [--at-once 128] [--milliseconds 150] [--votes 242255]

The judge sits before a server in a process of its own that takes a fixed time a reply; every reply is on disk before it
counts. The bound is judgements / at once x the server's time. Memory is what the process holds more after all of them
than after a tenth: the votes themselves, and no queue beside them. The archive is written as Parquet, 15 models on the
same items, and read back; the audit is agreement, kappas, alpha, rates and biases with an interval each.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.bench_teacher import slow_server
from iar.config import Endpoint
from iar.methods.agreement import agreement
from iar.methods.ballots import ReplyFacts
from iar.methods.grading import Grading
from iar.records import write_json
from iar.services.llm_judge import LlmJudge

ROOT = Path(__file__).parents[1]
MOST_OVER_IDEAL, MOST_SECONDS, MOST_GIGABYTES = 1.15, 5.0, 1.0
VERDICT = json.dumps({"reason": "It says what the reference says.", "score": 1})
JUDGES = ("judge-a", "judge-b", "judge-c")
MODELS = 15
REPLY = ("model", "suite", "item_id")
THIRD_SHARE = 0.29
"""Of the replies the third judge was called on in the paper's evaluation."""


def gradings(count: int) -> Iterator[Grading]:
    """Yield replies to grade, no two alike."""
    for number in range(count):
        question = f"Which lamp of the harbour burns longest in the year {number}, and who lights it?"
        yield Grading(question, f"Lamp {number}, which Tora Lind lights. " * 4, f"Lamp {number}; Tora Lind lights it.")


def judging(judgements: int, at_once: int, milliseconds: float) -> dict[str, Any]:
    """Return seconds of all judgements, their ideal, the growth of memory over the last nine tenths, in MB, and the
    processor time: ours a judgement, in ms, and the server's as a share of a core."""
    process, held = psutil.Process(), []

    def watch(done: int, total: int) -> None:
        if done in (total // 10, total):
            held.append(process.memory_info().rss / 1e6)

    with slow_server(milliseconds, VERDICT) as server, tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint(name="judge", base_url=server.base_url, model="m", concurrency=at_once)
        LlmJudge(endpoint, Path(folder) / "warm").judge_many(list(gradings(at_once)))  # imports, connections
        asked = list(gradings(judgements))
        judge = LlmJudge(endpoint, Path(folder) / "cold")
        start, our_start, server_start = time.perf_counter(), time.process_time(), server.cpu_seconds()
        votes = judge.judge_many(asked, watch)
        seconds = time.perf_counter() - start
        our_cpu, server_cpu = time.process_time() - our_start, server.cpu_seconds() - server_start
    assert all(one.score == 1.0 for one in votes)
    ideal = judgements / at_once * milliseconds / 1000
    return {
        "ours": seconds,
        "bound": ideal,
        "over_ideal": seconds / ideal,
        "grown_mb": held[-1] - held[0],
        "cpu_ms_each": 1000 * our_cpu / judgements,
        "server_core_share": server_cpu / seconds,
    }


def write_archive(path: Path, votes: int) -> dict[tuple[str, str, str], ReplyFacts]:
    """Write about `votes` votes of three judges on 15 models; return the facts of the replies."""
    import pyarrow
    import pyarrow.parquet

    draw = np.random.default_rng(1)
    items = round(votes / MODELS / (2 + THIRD_SHARE))
    replies = [(f"model-{model}", "domain", f"q-{item}") for item in range(items) for model in range(MODELS)]
    truth = np.repeat(draw.random(items), MODELS)
    grades = [np.digitize(truth + draw.normal(0, 0.18, len(replies)), [0.4, 0.6]) / 2 for _ in JUDGES]
    disputed = np.flatnonzero(grades[0] != grades[1])
    called = [np.arange(len(replies)), np.arange(len(replies)), disputed]
    order = [(place, judge) for judge, places in enumerate(called) for place in places.tolist()][:votes]
    table = pyarrow.table(
        {
            **{name: [replies[place][part] for place, _ in order] for part, name in enumerate(REPLY)},
            "judge": [JUDGES[judge] for _, judge in order],
            "judge_version": ["1"] * len(order),
            "attempt": pyarrow.array([1] * len(order), pyarrow.int32()),
            "score": [float(grades[judge][place]) for place, judge in order],
            "raw": [VERDICT] * len(order),
        }
    )
    pyarrow.parquet.write_table(table, path, compression="zstd")
    lengths, places = draw.integers(1, 200, len(replies)), draw.random(len(replies))
    return {key: ReplyFacts(int(lengths[n]), float(places[n])) for n, key in enumerate(replies)}


def auditing(votes: int, resamples: int) -> dict[str, Any]:
    """Return seconds and peak memory of reading an archive and of every number with its interval."""
    from iar.services.vote_archive import read_table, to_ballots

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes.parquet"
        facts = write_archive(path, votes)
        start = time.perf_counter()
        ballots = to_ballots(read_table([path]), JUDGES, facts)
        found = agreement(ballots, resamples)
        seconds = time.perf_counter() - start
    assert found.kappa.low is not None and found.kappa.high is not None and found.kappa.value is not None
    assert found.kappa.low < found.kappa.value < found.kappa.high
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": seconds, "peak_gb": peak, "replies": found.replies, "votes": int(ballots.called.sum())}


def in_own_process(votes: int, resamples: int) -> dict[str, Any]:
    """Run `auditing` in a process of its own, so that its peak memory is not that of the judgements before."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_judge",
        "--audit-only",
        "--votes",
        str(votes),
        "--resamples",
        str(resamples),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(entry: dict[str, Any]) -> str:
    """Return the entry as one line to read."""
    sizes, audit = entry["sizes"], entry["audit"]
    kept, small = (
        "kept" if within else "NOT kept"
        for within in (
            entry["over_ideal"] <= MOST_OVER_IDEAL,
            audit["seconds"] < MOST_SECONDS and audit["peak_gb"] < MOST_GIGABYTES,
        )
    )
    return (
        f"judge, {sizes['judgements']} judgements, {sizes['at_once']} at once, {sizes['server_milliseconds']:g} ms a "
        f"reply: ideal {entry['bound']:.2f} s, ours {entry['ours']:.2f} s ({entry['over_ideal']:.1%}), memory "
        f"{entry['grown_mb']:+.0f} MB, {entry['cpu_ms_each']:.2f} ms of CPU each, the server at "
        f"{entry['server_core_share']:.0%} of a core; bound of {MOST_OVER_IDEAL:.0%} {kept}; audit of "
        f"{audit['votes']} votes, {sizes['resamples']} resamples: {audit['seconds']:.2f} s, peak "
        f"{audit['peak_gb']:.2f} GB; bound of {MOST_SECONDS:g} s and {MOST_GIGABYTES:g} GB {small}"
    )


def main() -> None:
    """Print one line, and write it as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgements", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--milliseconds", type=float, default=150.0)
    parser.add_argument("--votes", type=int, default=242_255)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--audit-only", action="store_true", help="print the audit's part as JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.audit_only:
        print(json.dumps(auditing(options.votes, options.resamples)))
        return
    sizes = {"judgements": options.judgements, "at_once": options.at_once, "server_milliseconds": options.milliseconds}
    entry = judging(options.judgements, options.at_once, options.milliseconds) | {
        "audit": in_own_process(options.votes, options.resamples),
        "unit": "s",
        "sizes": sizes | {"votes": options.votes, "resamples": options.resamples},
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }
    print(table(entry))
    if options.out:
        write_json(options.out, {"judge": entry})


if __name__ == "__main__":
    main()
