"""The shipped probes measure an ability: a model that only echoes its prompt or says next to nothing earns no point."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from iar.methods.ifeval import check_reply

PROBES = Path(__file__).parents[1] / "examples" / "probes"
SHORT_REPLIES = ("Yes.", "Thank you.", "A walk through a small town.", "That is all.", "I do not know.")


def probes(suite: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROBES / f"{suite}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_are_as_many_as_the_readme_says() -> None:
    assert [len(probes(suite)) for suite in ("ifeval", "mmlu", "msbench")] == [40, 60, 20]


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
