"""General instruction data: the layouts that are understood, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from iar.errors import UserError
from iar.methods.textnorm import character_ngrams, jaccard
from iar.services.instructions import general_examples

REPOSITORY = Path(__file__).parents[2]
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def write(folder: Path, *rows: Any) -> str:
    path = folder / "general.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "answer": "b"},
        {"prompt": "a", "response": "b", "more": 1},
        {"instruction": "a", "context": "", "response": "b"},
        {"instruction": "a", "input": "", "output": "b"},
        {"question": "a", "answer": "b"},
        {"messages": TURNS},
        {"messages": [*TURNS, {"role": "user", "content": "c"}]},
    ],
)
def test_the_usual_layouts_are_understood(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = general_examples(write(tmp_path, row))
    assert (found.objective, found.prompt, found.target) == ("replay", "a", "b")
    assert found.source_id == "general.jsonl:1"


def test_a_text_that_the_instruction_speaks_of_follows_it(tmp_path: Path) -> None:
    (found,) = general_examples(
        write(tmp_path, {"instruction": "Shorten.", "input": "A long text.", "output": "Text."})
    )
    assert found.prompt == "Shorten.\n\nA long text."


def test_equal_rows_count_once(tmp_path: Path) -> None:
    row = {"prompt": "a", "answer": "b"}
    assert len(general_examples(write(tmp_path, row, row, row | {"answer": "c"}))) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, r"general\.jsonl:1: keys text; give 'prompt' with 'answer', or 'messages'"),
        ({"prompt": "a", "answer": ""}, r'general\.jsonl:1: answer is ""; give it as text'),
        ({"messages": TURNS[::-1]}, r"general\.jsonl:1: messages do not begin with a user and an assistant turn"),
    ],
)
def test_a_row_without_prompt_and_answer_is_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        general_examples(write(tmp_path, row))


def test_a_missing_or_empty_file_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"baselines\.replay_data: no file 'no\.jsonl' in /.*; give the path"):
        general_examples("no.jsonl")
    with pytest.raises(UserError, match=r"baselines\.replay_data: .*general\.jsonl has no rows"):
        general_examples(write(tmp_path))


def test_the_example_data_are_plain_distinct_and_repeat_no_probe() -> None:
    examples = general_examples(str(REPOSITORY / "examples" / "replay.jsonl"))
    assert len(examples) == len({example.prompt for example in examples}) >= 120
    probes = [
        json.loads(line)
        for name in ("ifeval", "mmlu", "msbench")
        for line in (REPOSITORY / "examples" / "probes" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    asked = [character_ngrams(probe.get("prompt") or probe["question"]) for probe in probes]
    assert max(jaccard(character_ngrams(one.prompt), other) for one in examples for other in asked) < 0.6
    text = " ".join(f"{one.prompt} {one.target}" for one in examples)
    documents = " ".join(path.stem for path in (REPOSITORY / "examples" / "documents").iterdir())
    names = {"talvern", "ithwick", "skarnholt", "cobbelay", "pellamoor", "vambry", "quillet", "tessolite"}
    assert all(name in documents or name == "talvern" for name in names)
    assert not [name for name in names if name in text.lower()]
