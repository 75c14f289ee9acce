"""The shipped probes measure an ability: a model that only echoes its prompt or says next to nothing earns no point."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from iar.methods.answer_text import tokenise
from iar.methods.contamination import Evaluation, TrainingText
from iar.methods.coverage import covered_points, covers_all
from iar.methods.ifeval import check_reply
from iar.services.decontamination import decontaminate

PROBES = Path(__file__).parents[1] / "examples" / "probes"
SHORT_REPLIES = ("Yes.", "Thank you.", "A walk through a small town.", "That is all.", "I do not know.")


def probes(suite: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROBES / f"{suite}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_are_as_many_as_the_readme_says() -> None:
    assert [len(probes(suite)) for suite in ("ifeval", "mmlu", "msbench", "msbench-200")] == [40, 60, 20, 200]


def test_the_200_open_ended_prompts_have_answers_that_earn_their_points_and_no_prompt_does() -> None:
    rows = probes("msbench-200")
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == 200
    assert [row["prompt"] for row in rows[:20]] == [row["prompt"] for row in probes("msbench")]
    for row in rows:
        question, points = tokenise(row["prompt"]), row["reference_points"]
        earned = {
            name: covered_points(points, question, tokenise(row[name]), covers_all) for name in ("reference", "prompt")
        }
        assert len(points) >= 2 and earned["reference"] >= len(points) - 1 and earned["prompt"] == 0, row


def test_no_instruction_for_replay_gives_an_open_ended_prompt_away() -> None:
    lines = (PROBES.parent / "replay.jsonl").read_text(encoding="utf-8").splitlines()
    asked = Evaluation("msbench", tuple((row["id"], row["prompt"]) for row in probes("msbench-200")))
    rows = [json.loads(line) for line in lines]
    found = decontaminate(
        "replay", [TrainingText(str(n), row["prompt"], row["answer"]) for n, row in enumerate(rows)], [asked]
    )
    assert found.hits == ()


@pytest.mark.parametrize("probe", probes("ifeval"), ids=lambda probe: str(probe["key"]))
def test_neither_an_echo_nor_a_few_words_follow_an_instruction(probe: dict[str, Any]) -> None:
    prompt = probe["prompt"]
    echoes = [prompt, *re.split(r"(?<=[.?!:])\s+", prompt)]
    followed = [
        reply
        for reply in (*echoes, *SHORT_REPLIES)
        if check_reply(prompt, probe["instruction_id_list"], probe["kwargs"], reply).strict
    ]
    assert not followed


def test_the_letters_of_the_choice_questions_are_spread() -> None:
    answers = [probe["answer"] for probe in probes("mmlu")]
    assert all(10 <= answers.count(letter) <= 20 for letter in range(4))
