"""Decontamination of prompts against IFEval and MMLU: one pass over an index against plain Python, pair by pair.

    python benchmarks/bench_decontamination.py [--prompts 100000] [--sample 100]

The suites are those of a folder `shared/benchmarks` beside the checkout, or of --suites; without one, made-up prompts
of the same number and length. The dataset is made of runs of their words, one prompt in twenty with a leak, whole or in
part. The peer compares sets of words and n-grams, each prompt with each evaluated one; its time grows with their
product, so it takes a sample, and its time for the whole is that of the sample times the rest. Both must find the same
leaks in it.
"""

import argparse
import math
import platform
import random
import time
from collections import Counter
from pathlib import Path

from iar.methods.contamination import Evaluation, PromptIndex, TrainingText
from iar.methods.textnorm import is_wide, words_of
from iar.records import write_json
from iar.services.decontamination import decontaminate
from iar.services.evaluations import file_evaluation

BESIDE = Path(__file__).parents[2] / "shared" / "benchmarks"
FILES = {"ifeval": "ifeval/input_data.jsonl", "mmlu": "mmlu/test.jsonl"}
PROMPT_WORDS, LEAKS = 30, 0.05
STEPS = (0.25, 0.5, 1.0)


def suites(folder: Path) -> list[Evaluation]:
    """Return IFEval and MMLU of a folder, or made-up ones of the same size."""
    if all((folder / name).is_file() for name in FILES.values()):
        return [file_evaluation(folder / name, "--suites") for name in FILES.values()]
    draw = random.Random(1)
    words = [f"word{number}" for number in range(12_000)]
    weights = [1 / (number + 10) for number in range(len(words))]
    made = [" ".join(draw.choices(words, weights, k=draw.randint(6, 40))) for _ in range(2_800)]
    return [Evaluation("made-up", tuple((str(number), text) for number, text in enumerate(made)))]


def dataset(evaluations: list[Evaluation], count: int) -> list[TrainingText]:
    """Return prompts made of runs of one to four words of the suites; one in twenty holds a prompt or most of one."""
    draw = random.Random(0)
    prompts = [text for one in evaluations for _, text in one.prompts]
    words = [word for text in prompts for word in text.split()]
    items = []
    for number in range(count):
        made: list[str] = []
        while len(made) < PROMPT_WORDS:
            start = draw.randrange(len(words))
            made += words[start : start + draw.randint(1, 4)]
        if draw.random() < LEAKS:
            leaked = draw.choice(prompts).split()
            made[PROMPT_WORDS // 2 :] = leaked[: math.ceil(draw.choice((0.6, 1.0)) * len(leaked))]
        items.append(TrainingText(str(number), " ".join(made), ""))
    return items


def plain_python(items: list[TrainingText], evaluations: list[Evaluation]) -> set[tuple[str, str, str]]:
    """Return (item, suite, prompt) of each pair that one of the three rules finds, comparing every pair."""
    found = set()
    for suite in evaluations:
        split = [(name, words_of(text)) for name, text in suite.prompts]
        holders = Counter(word for _, words in split for word in set(words))
        weight = {word: math.log(1 + len(split) / count) for word, count in holders.items()}
        grams = [(ngrams(words, 8), ngrams(words, 3)) for _, words in split]
        for item in items:
            words = words_of(item.prompt)
            own, short = ngrams(words, 8), ngrams(words, 3)
            for (name, theirs), (long_theirs, _) in zip(split, grams, strict=True):
                if theirs and is_leak(words, own, short, theirs, long_theirs, weight):
                    found.add((item.id, suite.name, name))
    return found


def is_leak(
    words: list[str],
    own: set[tuple[str, ...]],
    short: set[tuple[str, ...]],
    theirs: list[str],
    long_theirs: set[tuple[str, ...]],
    weight: dict[str, float],
) -> bool:
    """Tell whether one prompt gives away another, by the rules of `methods/contamination.py`."""
    if words == theirs:
        return True
    shared = own & long_theirs
    if len(covered(theirs, shared, 8)) > 0.5 * len(theirs) or (shared and 2 * len(shared) >= len(own)):
        return True
    if len(theirs) >= 16 or sum(0.5 if is_wide(word) else 1 for word in theirs) < 5:
        return False
    least = min(1.0, max(0.8, 1 - 0.2 * (len(theirs) - 6) / 6))
    whole = sum(weight[word] for word in theirs)

    def share(grams: set[tuple[str, ...]]) -> float:
        return sum(weight[theirs[place]] for place in covered(theirs, grams, 3)) / whole

    if share(short) < least - 1e-9:
        return False
    # Somewhere in the text, not all over it.
    reach = 2 * len(theirs)
    return any(share(ngrams(words[max(0, at - reach) : at + reach + 2], 3)) >= least - 1e-9 for at in range(len(words)))


def ngrams(words: list[str], size: int) -> set[tuple[str, ...]]:
    """Return the set of n-grams."""
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def covered(words: list[str], grams: set[tuple[str, ...]], size: int) -> list[int]:
    """Return the places of the words that stand in one of the n-grams."""
    starts = [start for start in range(len(words) - size + 1) if tuple(words[start : start + size]) in grams]
    return sorted({place for start in starts for place in range(start, start + size)})


def main() -> None:
    """Print one line, and write it as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--suites", type=Path, default=BESIDE)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    evaluations = suites(options.suites)
    items = dataset(evaluations, options.prompts)

    started = time.perf_counter()
    index = PromptIndex(evaluations)
    index_seconds = time.perf_counter() - started
    growth = {}
    for step in STEPS:
        part = items[: round(step * len(items))]
        started = time.perf_counter()
        found = decontaminate("prompts", part, evaluations, index)
        growth[str(len(part))] = time.perf_counter() - started
    ours = index_seconds + growth[str(len(items))]

    sample = items[: options.sample]
    started = time.perf_counter()
    expected = plain_python(sample, evaluations)
    peer = (time.perf_counter() - started) * len(items) / len(sample)
    got = {(hit.item_id, hit.evaluation, hit.prompt_id) for item in sample for hit in index.find(item)}
    if got != expected:
        raise SystemExit(f"decontamination: not the same leaks as plain Python: {sorted(got ^ expected)[:5]}")

    checked = sum(check.checked for check in found.checks)
    times = ", ".join(f"{count} in {seconds:.1f} s" for count, seconds in growth.items())
    print(
        f"decontamination, {len(items)} prompts against {checked}: ours {ours:.1f} s with the index ({times}), plain "
        f"Python {peer:.0f} s as {len(sample)} of them take it, ratio {peer / ours:.0f}"
    )
    if options.out:
        sizes = {"prompts": len(items), "evaluated": checked, "sample": len(sample), "leaks": len(found.hits)}
        entry = {"ours": ours, "peer": peer, "ratio": peer / ours, "unit": "s", "sizes": sizes}
        growing = {"index_seconds": index_seconds, "seconds_by_prompts": growth}
        write_json(options.out, {"decontamination": entry | growing | {"machine": platform.platform()}})


if __name__ == "__main__":
    main()
