"""What gives away an evaluated prompt, in any script, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.leaks import without_leaks
from iar.methods.textnorm import word_ngrams, words_of
from iar.records import Example

CAPITAL, CHINESE = "What is the capital of France?", "中国的首都是哪座城市？"
MOTION = "Which of these is the first of Newton's laws of motion?"
BREAD = "Name three kinds of bread that are baked in an oven without any yeast at all."


def prompt(text: str) -> Example:
    return Example(text[:8], "replay", "source", text, "answer")


def leaks(texts: list[str], evaluated: list[str]) -> list[tuple[str, str]]:
    kept, rejects = without_leaks([prompt(text) for text in texts], evaluated)
    assert sorted([one.prompt for one in kept] + [one.text for one in rejects]) == sorted(texts)
    return [(reject.text, reject.counterpart) for reject in rejects]


@pytest.mark.parametrize(
    ("text", "evaluated"),
    [
        ("what is the CAPITAL of france", CAPITAL),
        ("Tell me: what is the capital of France? Answer in one word please now.", CAPITAL),
        ("中国的首都是哪座城市", CHINESE),
        ("请问，中国的首都是哪座城市？谢谢", CHINESE),
        ("Which of these is the first of Newton's laws of motion? (A) Rest (B) Force (C) Action", MOTION),
        ("the first of Newton's laws of motion", MOTION),
        ("Please name three kinds of bread that are baked in an oven without any yeast", BREAD),
        (
            "I keep a bakery by the sea, with four people and a dog, and I ask you to be honest with us: name three "
            "kinds of bread that are baked in an oven without any yeast, please, and then write us a long poem on it.",
            BREAD,
        ),
        ("日本で一番高い山は何ですか。一言で答えてください。", "日本で一番高い山は何ですか。"),
        ("대답해 주세요. 프랑스의 수도가 되는 도시는 어디입니까?", "프랑스의 수도가 되는 도시는 어디입니까?"),
    ],
)
def test_an_evaluated_prompt_is_dropped_however_it_is_written(text: str, evaluated: str) -> None:
    assert leaks([text, "How do I cook rice?"], ["Sing.", evaluated]) == [(text, evaluated)]


def test_what_only_sounds_alike_stays() -> None:
    evaluated = [CAPITAL, CHINESE, MOTION, BREAD, "Why?", "What is it?", "你是谁？", "Say hello."]
    texts = [
        "capital of France",
        "中国的首都",
        "What is the capital of Norway?",
        "What is it? Say hello. And why? Then tell me in six words what a bakery is.",
        "请用一句话告诉我，你是谁？你会做什么？",
        "Name three kinds of cheese.",
        "Which of these is the largest?",
    ]
    assert leaks(texts, evaluated) == []
    assert leaks(["why", "你是谁"], evaluated) == [("why", "Why?"), ("你是谁", "你是谁？")]


def test_of_several_prompts_the_first_is_named() -> None:
    longer = f"Be brief. {CAPITAL}"
    assert leaks([f"Hello! {longer}"], [longer, CAPITAL]) == [(f"Hello! {longer}", longer)]


TEXTS = st.lists(st.lists(st.sampled_from(["a", "b", "城", "市"]), max_size=14).map(" ".join), max_size=8)


def gives_away(text: str, evaluated: str) -> bool:
    """The rule, for one pair."""
    first, second = words_of(text), words_of(evaluated)
    if first == second:
        return True
    for one, other in ((first, second), (second, first)):
        weight = sum(0.5 if word in ("城", "市") else 1 for word in one)
        if weight >= 5 and f" {' '.join(one)} " in f" {' '.join(other)} ":
            return True
    ngrams = word_ngrams(text), word_ngrams(evaluated)
    fewer = min(map(len, ngrams))
    return fewer > 0 and len(ngrams[0] & ngrams[1]) >= 0.5 * fewer


@given(TEXTS, TEXTS)
def test_the_index_finds_what_comparing_every_pair_finds(texts: list[str], evaluated: list[str]) -> None:
    found = leaks(texts, evaluated)
    expected = [next((other for other in evaluated if gives_away(text, other)), None) for text in texts]
    assert found == [(text, twin) for text, twin in zip(texts, expected, strict=True) if twin is not None]
