"""IFEval's checkers: strict and loose, offline, repeatable, and equal to lm-eval's own result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iar.methods.ifeval import check_reply, known_instructions


def follows(instruction: str, reply: str, **kwargs: object) -> bool:
    return check_reply("Write.", [instruction], [kwargs], reply).strict


def test_each_instruction_of_a_prompt_has_a_verdict_of_its_own() -> None:
    ids = ["punctuation:no_comma", "keywords:existence"]
    followed = check_reply("Write.", ids, [{}, {"keywords": ["lamp"]}], "Sure, here it is:\nA lamp.")
    assert (followed.each_strict, followed.each_loose) == ((False, True), (True, True))
    assert (followed.strict, followed.loose) == (False, True)


def test_knows_the_25_instructions() -> None:
    assert len(known_instructions()) == 25
    assert "punctuation:no_comma" in known_instructions()


def test_a_reply_follows_or_breaks_each_kind() -> None:
    assert follows("punctuation:no_comma", "One two.")
    assert not follows("punctuation:no_comma", "One, two.")
    assert follows("keywords:existence", "A river and a bridge.", keywords=["river", "bridge"])
    assert not follows("keywords:existence", "A river.", keywords=["river", "bridge"])
    assert follows("length_constraints:number_words", "one two three", relation="at least", num_words=3)
    assert follows("change_case:english_lowercase", "the lamp burns in the tower at night")


def test_sentences_are_counted_offline_and_abbreviations_end_none() -> None:
    reply = "Dr. Lind came at 9 a.m. to see it. It was green! Was it?"
    assert follows("length_constraints:number_sentences", reply, relation="less than", num_sentences=4)
    assert not follows("length_constraints:number_sentences", reply, relation="less than", num_sentences=3)


def test_capital_words_are_counted_without_the_sentence_model() -> None:
    kwargs = {"capital_frequency": 2, "capital_relation": "at least"}
    assert follows("change_case:capital_word_frequency", "THE lamp IS green.", **kwargs)
    assert not follows("change_case:capital_word_frequency", "The lamp IS green.", **kwargs)


def test_arguments_without_a_value_are_left_out() -> None:
    kwargs = {"num_highlights": None, "keywords": None, "relation": "at least", "num_words": 2}
    assert follows("length_constraints:number_words", "one two", **kwargs)


def test_all_instructions_of_a_prompt_count() -> None:
    ids = ["punctuation:no_comma", "keywords:existence"]
    assert not check_reply("Write.", ids, [{}, {"keywords": ["lamp"]}], "A tower.").strict
    assert check_reply("Write.", ids, [{}, {"keywords": ["lamp"]}], "A lamp.").strict


def test_loose_forgives_a_first_line_that_strict_does_not() -> None:
    followed = check_reply("Write.", ["punctuation:no_comma"], [{}], "Sure, here it is:\nA green lamp.")
    assert (followed.strict, followed.loose) == (False, True)


def test_an_empty_reply_follows_nothing() -> None:
    followed = check_reply("Write.", ["punctuation:no_comma"], [{}], "  \n")
    assert (followed.strict, followed.loose) == (False, False)


def test_language_is_detected_the_same_way_every_time() -> None:
    # Short and mixed: unseeded langdetect wavers here.
    results = {follows("language:response_language", "Bonjour lamp tower le night", language="fr") for _ in range(15)}
    assert len(results) == 1


def test_import_downloads_nothing() -> None:
    code = (
        "import nltk\n"
        "def refuse(*args, **kwargs): raise AssertionError('download')\n"
        "nltk.download = refuse\n"
        "find = nltk.data.find\n"
        "from iar.methods.ifeval import check_reply\n"
        "arguments = {'relation': 'at least', 'num_sentences': 1}\n"
        "check_reply('p', ['length_constraints:number_sentences'], [arguments], 'A.')\n"
        "assert nltk.data.find is find\n"
    )
    environment = os.environ | {"NLTK_DATA": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_real_prompt_can_be_checked() -> None:
    if "IAR_BENCHMARKS" not in os.environ:
        pytest.skip("IAR_BENCHMARKS names no folder of benchmark data")
    path = Path(os.environ["IAR_BENCHMARKS"]) / "ifeval" / "input_data.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    reply = "First, a title.\n\nThe lamp burns. P.S. It is green."
    strict = [check_reply(row["prompt"], row["instruction_id_list"], row["kwargs"], reply).strict for row in rows]
    assert len(strict) == len(rows) > 500
    assert 0 < sum(strict) < len(rows) / 2
