"""What gives away an evaluated prompt, in any script, and what does not."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iar.methods.contamination import Evaluation, Hit, PromptIndex, TrainingText, planted_leaks
from iar.methods.textnorm import word_ngrams, words_of

CAPITAL, CHINESE = "What is the capital of France?", "中国的首都是哪座著名的城市？"
MOTION = "Which of these is the first of Newton's laws of motion?"
BREAD = "Name three kinds of bread that are baked in an oven without any yeast at all."


def suite(*prompts: str, own: bool = False, sealed: bool = False) -> Evaluation:
    return Evaluation("suite", tuple((str(number), prompt) for number, prompt in enumerate(prompts)), own, sealed)


def find(evaluation: Evaluation, text: str, prompt: str = "") -> list[Hit]:
    return PromptIndex([evaluation]).find(TrainingText("item", prompt, text))


@pytest.mark.parametrize(
    ("text", "evaluated", "rule"),
    [
        ("what is the CAPITAL of france", CAPITAL, "exact"),
        ("Ｗｈａｔ　ｉｓ the capital — of ﬁne France", "What is the capital of fine France?", "exact"),
        ("why", "Why?", "exact"),
        ("你是谁", "你是谁？", "exact"),
        ("Tell me: what is the capital of France? Answer in one word please now.", CAPITAL, "3-gram"),
        ("请问，中国的首都是哪座著名的城市？谢谢", CHINESE, "8-gram"),
        ("Which of these is the first of Newton's laws of motion? (A) Rest (B) Force (C) Action", MOTION, "8-gram"),
        ("Please name three kinds of bread that are baked in an oven without any yeast", BREAD, "8-gram"),
        (
            "I keep a bakery by the sea, with four people and a dog, and I ask you to be honest with us: name three "
            "kinds of bread that are baked in an oven without any yeast, please, and then write us a long poem on it.",
            BREAD,
            "8-gram",
        ),
        ("答えてください。日本で一番高い山は何ですか。一言で。", "日本で一番高い山は何ですか。", "8-gram"),
        (
            "대답해 주세요. 프랑스의 수도가 되는 도시는 어디입니까? 네",
            "프랑스의 수도가 되는 도시는 어디입니까?",
            "3-gram",
        ),
    ],
)
def test_an_evaluated_prompt_is_found_however_it_is_written(text: str, evaluated: str, rule: str) -> None:
    (hit,) = find(suite("Sing.", evaluated), text)
    assert (hit.prompt_id, hit.rule, hit.text, hit.prompt) == ("1", rule, text, evaluated)


def test_what_only_sounds_alike_is_none() -> None:
    evaluated = suite(CAPITAL, CHINESE, MOTION, BREAD, "Why?", "What is it?", "你是谁？", "Say hello.")
    for text in (
        "capital of France",
        "中国的首都",
        "What is the capital of Norway?",
        "What is it? Say hello. And why? Then tell me in six words what a bakery is.",
        "请用一句话告诉我，你是谁？你会做什么？",
        "Name three kinds of cheese.",
        "Which of these is the largest?",
        "Newton's laws of motion say which forces are at rest.",
    ):
        assert find(evaluated, text, prompt=text) == []


def test_rare_words_weigh_more_than_frames() -> None:
    # Two words differ in each; "who built the ... in the year" is what all of them ask.
    frame = "Who built the {} {} in the town of Velm in the year of the fog?"
    evaluated = suite(*(frame.format("old", f"thing{number}") for number in range(20)), own=True)
    assert find(evaluated, "", prompt="As we said: " + frame.format("old", "thing3") + " Answer in a word or in two.")
    assert not find(
        suite("Who mended the crooked Quillet Gauge at noon?", "Who saw it?"), "Who mended the crooked lamp?"
    )


def test_our_own_questions_are_compared_with_prompts_and_not_with_the_documents_they_quote() -> None:
    sentence = "the old mill on the northern hill of Velm was built by Tora Lind in the year 1846"
    question = f'Which words complete: "{sentence.replace("Tora Lind", "____")}"?'
    assert find(suite(question, own=True), f"It is known that {sentence}.") == []
    assert find(suite(question), f"It is known that {sentence}.")
    assert find(suite(question, own=True), "", prompt=f"Please answer. {question}")


def test_a_training_prompt_that_is_a_part_of_an_evaluated_one_is_found() -> None:
    part = "Which engineer of the northern guild built the tall mill on the hill of Velm"
    whole = f"{part}, and what did the council pay for all of the work in the end, and to whom, and in which coin?"
    (hit,) = find(suite(whole, own=True), "", prompt=f"{part}?")
    assert (hit.rule, hit.share) == ("8-gram", 1.0)


def test_a_sealed_prompt_is_named_by_its_id_alone() -> None:
    (hit,) = find(suite(CAPITAL, own=True, sealed=True), "", prompt=CAPITAL)
    assert (hit.prompt_id, hit.prompt, hit.text) == ("0", "", "")


def test_the_place_of_a_hit_in_a_long_text_is_shown() -> None:
    (hit,) = find(suite(BREAD), f"{'much to read ' * 2000} {BREAD} {'and more ' * 2000}")
    assert "name three kinds of bread that are baked" in hit.text and len(hit.text) < 1000


WORDS = st.sampled_from(["a", "b", "c", "城", "市"])
PROMPTS = st.lists(st.lists(WORDS, max_size=18).map(" ".join), max_size=6)
TEXT = st.lists(WORDS, max_size=11).map(" ".join)


def gives_away(text: str, evaluated: str, prompts: list[str]) -> bool:
    """The three rules for one pair, straight from their words; texts are so short that all of one is one place."""
    ours, theirs = words_of(text), words_of(evaluated)
    if not theirs:
        return False
    if ours == theirs:
        return True
    shared = word_ngrams(text) & word_ngrams(evaluated)
    if len(covered(theirs, shared, 8)) > 0.5 * len(theirs) or (shared and 2 * len(shared) >= len(word_ngrams(text))):
        return True
    worth = sum(0.5 if word in "城市" else 1 for word in theirs)
    if worth < 5 or len(theirs) >= 16:
        return False
    weights = {
        word: math.log(1 + len(prompts) / sum(word in words_of(other) for other in prompts)) for word in set(theirs)
    }
    places = covered(theirs, word_ngrams(text, 3), 3)
    share = sum(weights[theirs[place]] for place in places) / sum(weights[word] for word in theirs)
    return share >= min(1.0, max(0.8, 1 - 0.2 * (len(theirs) - 6) / 6)) - 1e-9


def covered(words: list[str], ngrams: frozenset[tuple[str, ...]], size: int) -> set[int]:
    starts = [start for start in range(len(words) - size + 1) if tuple(words[start : start + size]) in ngrams]
    return {place for start in starts for place in range(start, start + size)}


@given(TEXT, PROMPTS)
def test_the_index_finds_what_comparing_every_pair_finds(text: str, prompts: list[str]) -> None:
    found = [int(hit.prompt_id) for hit in find(suite(*prompts), "", prompt=text)]
    assert found == [place for place, one in enumerate(prompts) if gives_away(text, one, prompts)]


@given(st.lists(st.text(max_size=60) | st.lists(WORDS, max_size=40).map(" ".join), max_size=5), st.booleans())
@example(["İstanbul ŉ ǰ ΐ ﬀ ẞ ſ"], False)
def test_every_planted_leak_is_found(prompts: list[str], own: bool) -> None:
    evaluation = suite(*prompts, own=own)
    index, plants = PromptIndex([evaluation]), list(planted_leaks(evaluation))
    assert all(index.find(plant) for plant in plants)
    assert bool(plants) == any(words_of(prompt) for prompt in prompts)
