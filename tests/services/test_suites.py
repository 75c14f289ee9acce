"""Loading the suites: what becomes an item, and what is refused with file, line and fix."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.records import QAPair
from iar.services.suites import domain_items, load_suites

IFEVAL = {
    "key": 1,
    "prompt": "No commas.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{"num_words": None}],
}
MMLU = {"subject": "physics", "question": "Which gas?", "choices": ["He", "H", "Ne", "O"], "answer": 3}
MSBENCH = {"id": "m1", "prompt": "Explain.", "reference": "Light.", "reference_points": ["light", "air"]}


def run_file(folder: Path, **rows: list[Any]) -> RunFile:
    """Return a run file whose suites hold `rows`, or one good row each."""
    paths = {}
    for name, good in (("ifeval", IFEVAL), ("mmlu", MMLU), ("msbench", MSBENCH)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows.get(name, [good])]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths[name] = str(folder / f"{name}.jsonl")
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "."}, "evaluate": paths})


def test_rows_become_items_with_their_limits(tmp_path: Path) -> None:
    suites = load_suites(run_file(tmp_path))
    (ifeval,), (mmlu,), (msbench,) = suites["ifeval"], suites["mmlu"], suites["msbench"]
    assert (ifeval.id, ifeval.prompt, ifeval.max_new_tokens) == ("ifeval-1", "No commas.", 160)
    assert ifeval.reference == {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
    assert (mmlu.id, mmlu.reference["answer"], mmlu.max_new_tokens) == ("mmlu-1", "D", 16)
    assert mmlu.prompt.endswith("Which gas?\nA. He\nB. H\nC. Ne\nD. O")
    assert (msbench.id, msbench.max_new_tokens) == ("msbench-m1", 128)
    assert msbench.reference == {"reference": "Light.", "points": ["light", "air"]}


@pytest.mark.parametrize("answer", [1, "B", " b "])
def test_an_answer_is_an_index_or_a_letter(tmp_path: Path, answer: int | str) -> None:
    suites = load_suites(run_file(tmp_path, mmlu=[MMLU | {"answer": answer}]))
    assert suites["mmlu"][0].reference["answer"] == "B"


def test_the_reference_is_never_in_the_prompt(tmp_path: Path) -> None:
    assert "Light" not in load_suites(run_file(tmp_path))["msbench"][0].prompt


@pytest.mark.parametrize(
    ("suite", "row", "message"),
    [
        ("mmlu", "{", r"mmlu\.jsonl:2: not JSON: .*; write one JSON object a line"),
        ("mmlu", "[1]", r"mmlu\.jsonl:2: a list; write one JSON object a line"),
        ("mmlu", {"question": "?"}, r"mmlu\.jsonl:2: no 'choices', only question; add the key 'choices'"),
        ("mmlu", MMLU | {"choices": ["x"]}, r"mmlu\.jsonl:2: 1 choices; give 4"),
        ("mmlu", MMLU | {"answer": 4}, r"mmlu\.jsonl:2: answer is 4; give a number from 0 to 3 or a letter"),
        ("mmlu", MMLU | {"answer": "AB"}, r"mmlu\.jsonl:2: answer is 'AB'; give a number"),
        ("mmlu", MMLU | {"question": 5}, r"mmlu\.jsonl:2: question is 5; give it as text"),
        ("ifeval", IFEVAL, r"ifeval\.jsonl:2: ifeval-1 stands there twice; give every row an id of its own"),
        (
            "ifeval",
            IFEVAL | {"instruction_id_list": ["no:such"]},
            r"ifeval\.jsonl:2: unknown instruction 'no:such'; use ids of IFEval, such as change_case:",
        ),
        (
            "ifeval",
            IFEVAL | {"kwargs": []},
            r"ifeval\.jsonl:2: 1 instructions and kwargs \[\]; give one object for each",
        ),
        ("msbench", {"id": 2, "prompt": "Why?"}, r"msbench\.jsonl:2: neither a reference text nor reference_points"),
        ("msbench", MSBENCH | {"reference_points": [1]}, r"reference_points is \[1\]; give a list of texts"),
    ],
)
def test_a_malformed_row_is_refused_with_its_line(tmp_path: Path, suite: str, row: Any, message: str) -> None:
    good = {"ifeval": IFEVAL, "mmlu": MMLU, "msbench": MSBENCH}[suite]
    with pytest.raises(UserError, match=message):
        load_suites(run_file(tmp_path, **{suite: [good, row]}))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate\.mmlu: .*mmlu\.jsonl has no rows; give a file with at least one"):
        load_suites(run_file(tmp_path, mmlu=[""]))


@pytest.mark.parametrize("place", ["missing/ifeval.jsonl", "no file"])
def test_a_missing_file_is_not_looked_for_on_the_hub(tmp_path: Path, place: str) -> None:
    settings = run_file(tmp_path).model_dump()
    settings["evaluate"]["ifeval"] = place
    with pytest.raises(UserError, match=r"evaluate\.ifeval: no file '.*' in /.*; give the path of a \.jsonl file, or"):
        load_suites(RunFile.model_validate(settings))


@pytest.mark.parametrize(("key", "decides"), [("", "It was Tora Lind."), ("Tora Lind", "Tora Lind")])
def test_questions_are_asked_as_they_were_trained_and_judged_by_their_key(
    tmp_path: Path, key: str, decides: str
) -> None:
    pair = QAPair("q1", "d", "c", "validation", "fact", "Who?", "It was Tora Lind.", key, ("Lind",), "Tora", "offline")
    (item,) = domain_items([pair], run_file(tmp_path))
    assert (item.id, item.suite, item.prompt, item.max_new_tokens) == ("q1", "domain", "Who?", 40)
    asked = {"question_type": "fact", "document": "d"}
    assert item.reference == {"reference": decides, "aliases": ["Lind"]} | asked


def test_the_real_benchmarks_load(tmp_path: Path) -> None:
    if "IAR_BENCHMARKS" not in os.environ:
        pytest.skip("IAR_BENCHMARKS names no folder of benchmark data")
    folder = Path(os.environ["IAR_BENCHMARKS"])
    settings = run_file(tmp_path).model_dump()
    settings["evaluate"] |= {"ifeval": str(folder / "ifeval/input_data.jsonl"), "mmlu": str(folder / "mmlu/test.jsonl")}
    suites = load_suites(RunFile.model_validate(settings))
    assert (len(suites["ifeval"]), len(suites["mmlu"])) == (540, 1140) or len(suites["ifeval"]) == 541
