"""The benchmark of generation runs end to end on a tiny model, and both sides answer the same prompts."""

import json
from pathlib import Path

import pytest

from benchmarks.bench_generation import SIDES, run_side, table
from benchmarks.verdicts import Verdict, cause, compare, rows
from iar.records import EvalItem, write_records

ITEMS = [EvalItem(f"q{n}", "domain", f"Which lamp burns in tower {n}?", 6, {}) for n in range(3)]


@pytest.mark.slow
def test_both_sides_answer_every_prompt_alike(tiny_model_folder: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "items.jsonl", ITEMS)
    found = {side: run_side(side, tiny_model_folder, tmp_path / "items.jsonl", 2, 4) for side in SIDES}
    assert all(seconds > 0 and set(texts) == {item.id for item in ITEMS} for seconds, texts in found.values())
    sizes = {"models": 2, "items": 3, "batch": 4}
    entry = {"ours": 1.0, "peer": 2.0, "ratio": 2.0, "sizes": sizes, "same_replies": 1.0}
    assert "ratio 2.00 (at least 1.5 kept); 100.0% of the replies are the same" in table(entry)


MMLU = EvalItem("mmlu-1", "mmlu", "?", 4, {"choices": ["x", "y", "z", "w"], "answer": "B"})


@pytest.mark.parametrize(
    ("theirs", "why"),
    [("B. y", r"the same reply: its letter is B, its first line 'B. y'; right is B"), ("C", "fork at character 0")],
)
def test_a_difference_has_its_cause(theirs: str, why: str) -> None:
    mine, other = Verdict("B. y", 1.0), Verdict(theirs, 0.0)
    assert why in cause(MMLU, mine, other)
    found = compare([MMLU], {"mmlu-1": mine}, {"mmlu-1": other})
    assert (found["same_verdicts"], found["points"]) == (0, {"ours": 100.0, "lm-eval": 0.0})
    assert found["differences"][0]["item"] == "mmlu-1"


def test_rows_are_spread_evenly(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(10)))
    assert [row["n"] for row in rows(tmp_path / "a.jsonl", 3)] == [0, 3, 6]
    assert len(rows(tmp_path / "a.jsonl", 0)) == 10
