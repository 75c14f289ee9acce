"""IFEval and MMLU by this package and by lm-eval's own loop: the same model, prompts and limits, verdict by verdict.

    python benchmarks/verdicts.py [--ifeval 40] [--mmlu 60] [--suites shared/benchmarks] [--out verdicts.json]

0 = all. The benchmarks are those of a folder with ifeval/input_data.jsonl and mmlu/test.jsonl; of MMLU, items are
taken evenly over its subjects. Both sides answer greedily in fp32. lm-eval's loop is `simple_evaluate` with its `hf`
backend, its IFEval task, and a generative MMLU task with the filter of its `mmlu_generative`: the reply's first line,
compared with the letter. Every difference is printed with its cause. Its sentence model cannot be downloaded
everywhere, so its checkers are given ours: verdicts that count sentences are compared, the splitter is not.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.config import ModelSection, RunFile
from iar.methods.mmlu import find_letter
from iar.records import EvalItem, Reply, write_json
from iar.services.engine import Engine
from iar.services.models import resolve_base
from iar.services.scoring import item_score
from iar.services.suites import load_suites

BESIDE = Path(__file__).parents[2] / "shared" / "benchmarks"
FIRST_LINE = r"^(.*?)(?=\n|$)"


@dataclass(frozen=True)
class Verdict:
    """What one side made of an item: the reply, and 1 where it passes (IFEval: strictly)."""

    text: str
    score: float
    loose: bool | None = None


def rows(path: Path, count: int) -> list[dict[str, Any]]:
    """Return `count` rows of a file, evenly spread; all for 0."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    count = min(count, len(found)) or len(found)
    return [found[place * len(found) // count] for place in range(count)]


def our_verdicts(model: Path, items: list[EvalItem]) -> dict[str, Verdict]:
    """Answer and score as the evaluation stage does."""
    replies: dict[str, Reply] = {reply.item_id: reply for reply in Engine(model, dtype="float32").generate(items)}
    scored = {item.id: item_score("m", item, replies[item.id], {}) for item in items}
    return {
        item.id: Verdict(
            replies[item.id].text,
            float(scored[item.id].score or 0),
            all(loose for _, loose in scored[item.id].instructions) if item.suite == "ifeval" else None,
        )
        for item in items
    }


def their_verdicts(model: Path, items: list[EvalItem], folder: Path) -> dict[str, Verdict]:
    """Answer and score by lm-eval's loop."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    by_suite = {suite: [item for item in items if item.suite == suite] for suite in ("ifeval", "mmlu")}
    backend = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=64)
    tasks = [_ifeval_task(by_suite["ifeval"], folder), _mmlu_task(by_suite["mmlu"], folder)]
    done = simple_evaluate(backend, tasks=tasks, apply_chat_template=True, log_samples=True, bootstrap_iters=0)
    found = {}
    for suite, samples in done["samples"].items():
        for sample in samples:
            item = by_suite["ifeval" if suite == "ifeval" else "mmlu"][sample["doc_id"]]
            score = sample["prompt_level_strict_acc" if item.suite == "ifeval" else "exact_match"]
            found[item.id] = Verdict(sample["resps"][0][0], float(score), sample.get("prompt_level_loose_acc"))
    return found


def _dataset(path: Path, split: str, documents: list[dict[str, Any]]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {split: str(path)}}}


def _task_file(path: Path, task: dict[str, Any]) -> str:
    """Write a task in lm-eval's format, of which JSON is a part; return its place."""
    write_json(path, task)
    return str(path)


def _ifeval_task(items: list[EvalItem], folder: Path) -> str:
    """Return lm-eval's own task over a local file."""
    from lm_eval.tasks import ifeval

    documents = [
        {
            "key": number,
            "prompt": item.prompt,
            "instruction_id_list": item.reference["instruction_ids"],
            "kwargs": item.reference["kwargs"],
        }
        for number, item in enumerate(items)
    ]
    limit = {"until": [], "do_sample": False, "max_gen_toks": items[0].max_new_tokens}
    own = {"include": str(Path(ifeval.__path__[0]) / "ifeval.yaml"), "task": "ifeval", "generation_kwargs": limit}
    return _task_file(folder / "ifeval.yaml", own | _dataset(folder / "ifeval-task.jsonl", "train", documents))


def _mmlu_task(items: list[EvalItem], folder: Path) -> str:
    """Return a generative task with the filter of lm-eval's own."""
    documents = [{"prompt": item.prompt, "letter": item.reference["answer"]} for item in items]
    filters = [{"function": "regex", "regex_pattern": FIRST_LINE}, {"function": "remove_whitespace"}]
    task = {
        "task": "mmlu_first_line",
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{letter}}",
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": items[0].max_new_tokens},
        "filter_list": [{"name": "get_response", "filter": [*filters, {"function": "take_first"}]}],
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "ignore_case": True,
                "ignore_punctuation": True,
            }
        ],
    }
    return _task_file(folder / "mmlu.yaml", task | _dataset(folder / "mmlu-task.jsonl", "test", documents))


def cause(item: EvalItem, ours: Verdict, theirs: Verdict) -> str:
    """Return why two verdicts on an item differ."""
    text = theirs.text.strip()
    if ours.text != text:
        pairs = zip(ours.text, text, strict=False)
        place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours.text), len(text)))
        return f"the replies fork at character {place}: {ours.text[place:][:40]!r}, {text[place:][:40]!r}"
    if item.suite == "mmlu":
        letter = find_letter(ours.text, item.reference["choices"])
        first = ours.text.partition("\n")[0][:60]
        return f"the same reply: its letter is {letter}, its first line {first!r}; right is {item.reference['answer']}"
    return "UNEXPLAINED: the same reply"


def compare(items: list[EvalItem], ours: dict[str, Verdict], theirs: dict[str, Verdict]) -> dict[str, Any]:
    """Return counts and every difference of one suite."""
    pairs = [(item, ours[item.id], theirs[item.id]) for item in items]
    differing = [
        (item, mine, other) for item, mine, other in pairs if (mine.score, mine.loose) != (other.score, other.loose)
    ]
    return {
        "items": len(items),
        "same_replies": sum(mine.text == other.text.strip() for _, mine, other in pairs),
        "same_verdicts": len(pairs) - len(differing),
        "points": {"ours": _points(ours, items), "lm-eval": _points(theirs, items)},
        "differences": [
            {"item": item.id, "ours": mine.score, "lm-eval": other.score, "cause": cause(item, mine, other)}
            for item, mine, other in differing
        ],
    }


def _points(verdicts: dict[str, Verdict], items: list[EvalItem]) -> float:
    return 100 * sum(verdicts[item.id].score for item in items) / len(items)


def sides(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the comparison by suite."""
    files = {"ifeval": options.suites / "ifeval" / "input_data.jsonl", "mmlu": options.suites / "mmlu" / "test.jsonl"}
    for name, path in files.items():
        lines = [json.dumps(row) + "\n" for row in rows(path, getattr(options, name))]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    places = {name: str(folder / f"{name}.jsonl") for name in files} | {"ifeval_max_tokens": options.max_tokens}
    run_file = RunFile.model_validate({"run": {"name": "v"}, "documents": {"path": "."}, "evaluate": places})
    suites = load_suites(run_file)
    items = [*suites["ifeval"], *suites["mmlu"]]
    (model := folder / "model").mkdir()
    resolve_base(ModelSection(source=options.source), model)
    ours, theirs = our_verdicts(model, items), their_verdicts(model, items, folder)
    return {name: compare(suites[name], ours, theirs) for name in files}


def main() -> None:
    """Print counts and differences, and write them as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="smollm2-135m-instruct", help="known name, folder or hub id")
    parser.add_argument("--ifeval", type=int, default=40)
    parser.add_argument("--mmlu", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=160, help="of a reply to IFEval")
    parser.add_argument("--suites", type=Path, default=BESIDE)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = sides(options, Path(folder))
    for name, one in found.items():
        points = ", ".join(f"{side} {value:.1f}" for side, value in one["points"].items())
        print(f"{name}: {one['items']} items, {one['same_replies']} same replies, {one['same_verdicts']} same verdicts")
        print(f"  points: {points}")
        for difference in one["differences"]:
            print(f"  {difference['item']}: {difference['ours']:g}, {difference['lm-eval']:g}: {difference['cause']}")
    if options.out:
        write_json(options.out, found)


if __name__ == "__main__":
    main()
