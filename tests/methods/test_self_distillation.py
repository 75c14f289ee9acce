"""SDFT's check of a rewrite: kept only where it is the same answer and nothing but an answer."""

from dataclasses import replace

import pytest

from iar.methods.self_distillation import REWRITE_PROMPT, acceptance, judged_rewrite, refusal, rewrite_prompt
from iar.records import QAPair, Reply

PAIR = QAPair(
    "q1", "d", "c", "train", "fact_extraction", "Who opened the harbour of Velm?",
    "The harbour of Velm was opened in 1911 by the engineer Tora Lind.", "Tora Lind", ("T. Lind",), "Tora", "offline",
)  # fmt: skip


def reply(text: str, truncated: bool = False) -> Reply:
    return Reply("q1", text, 9, truncated)


def test_the_model_sees_question_and_reference() -> None:
    prompt = rewrite_prompt(replace(PAIR, question="What does {answer} mean?"))
    assert "Question: What does {answer} mean?" in prompt and prompt.endswith(PAIR.answer)
    assert REWRITE_PROMPT.count("{") == 2


@pytest.mark.parametrize(
    "text",
    [
        "It was Tora Lind, an engineer, who opened it in 1911.",
        "The engineer Tora Lind opened the harbour in 1911.",
        "T. Lind opened the harbour.",
    ],
)
def test_the_same_answer_in_other_words_is_taken(text: str) -> None:
    taken = judged_rewrite(PAIR, reply(text))
    assert (taken.answer, taken.rewrite, taken.refused, taken.checked) == (text, text, "", True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("...", "empty"),
        ("The harbour was opened by the engineer Maro Tensk.", "lost the answer"),
        ("It was not Tora Lind who opened the harbour.", "lost the answer"),
        ("The reference answer says that Tora Lind opened it.", "talks about the task"),
        ("In my own words: Tora Lind opened the harbour.", "talks about the task"),
        ("Here is the rewritten sentence. Tora Lind opened the harbour.", "talks about the task"),
        ("Question: Who opened it? Answer: Tora Lind.", "talks about the task"),
        ("Based on the provided answer, Tora Lind opened it.", "talks about the task"),
        ("As an AI language model, I believe Tora Lind opened it.", "talks about the task"),
        ("Reference: Tora Lind opened it.", "talks about the task"),
        ("As stated in the reference, Tora Lind opened it.", "talks about the task"),
        ("According to the reference Tora Lind opened it.", "talks about the task"),
        ("Tora Lind opened it. The answer above is the same as the reference provided.", "talks about the task"),
        ("I would say it in other words: Tora Lind opened it.", "talks about the task"),
        ("In simpler terms, Tora Lind opened it.", "talks about the task"),
        ("Based on the information provided, Tora Lind opened it.", "talks about the task"),
    ],
)
def test_any_other_rewrite_leaves_the_original_with_a_reason(text: str, reason: str) -> None:
    kept = judged_rewrite(PAIR, reply(text))
    assert (kept.answer, kept.refused) == (PAIR.answer, reason)


CHINESE = QAPair(
    "q1", "d", "c", "train", "fact_extraction", "谁建造了维尔姆港？", "维尔姆港由托拉林德于1911年建造。", "托拉林德",
    (), "维尔姆港", "offline",
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "参考答案：托拉林德。",
        "參考答案：托拉林德。",
        "根据参考答案，托拉林德建造了维尔姆港。",
        "如参考所述，托拉林德建造了它。",
        "改写后的回答：托拉林德建造了它。",
        "改寫後的答案是：托拉林德建造了它。",
        "用自己的话来说，托拉林德建造了维尔姆港。",
        "换句话说，托拉林德建造了它。",
        "回答：托拉林德建造了它。",
        "最终答案：托拉林德。",
        "以下是我的回答。托拉林德建造了它。",
        "根据您提供的信息，托拉林德建造了它。",
        "正确答案是托拉林德。",
        "作为一个AI语言模型，我认为是托拉林德建造的。",
    ],
)
def test_talk_about_the_task_in_chinese_is_refused(text: str) -> None:
    assert refusal(CHINESE, text) == "talks about the task"


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        (PAIR, "Tora Lind, who later founded the reference library of Velm, opened it."),
        (PAIR, "Tora Lind opened it, with reference to a law of 1899."),
        (PAIR, "Tora Lind opened it; the height of its wall is still the reference point of all maps."),
        (PAIR, "It was Tora Lind. In answer to the council, she paid for it herself."),
        (CHINESE, "托拉林德建造了它，图书馆里有参考资料。"),
        (CHINESE, "托拉林德建造了它，这解决了港口的问题。"),
        (CHINESE, "建造者是托拉林德，他回答说：“我用自己的语言写信。”"),
        (CHINESE, "托拉林德建造了它，从而改写了历史。"),
    ],
)
def test_prose_with_a_word_of_the_task_in_it_is_taken(pair: QAPair, text: str) -> None:
    assert refusal(pair, text) == ""


def test_the_thoughts_of_a_reasoning_model_are_no_part_of_its_rewrite() -> None:
    for thoughts in ("<think>\n\n</think>\n\n", "<think>The reference answer says Tora Lind.</think>", "Hm.</think>\n"):
        taken = judged_rewrite(PAIR, reply(f"{thoughts}Tora Lind opened it."))
        assert (taken.answer, taken.rewrite, taken.refused) == ("Tora Lind opened it.",) * 2 + ("",)
    assert judged_rewrite(PAIR, reply("<think>Tora Lind did, I think.</think>")).refused == "empty"
    assert judged_rewrite(PAIR, reply("<think>Tora Lind did, I think.")).refused == "empty"
    assert judged_rewrite(PAIR, reply("Tora Lind did. <think> Or not.")).refused == "talks about the task"


def test_a_rewrite_cut_off_is_refused() -> None:
    cut = judged_rewrite(PAIR, reply("The engineer Tora Lind opened the", truncated=True))
    assert (cut.answer, cut.refused) == (PAIR.answer, "cut off at the token limit")


def test_words_of_the_documents_are_no_talk_about_the_task() -> None:
    pair = replace(PAIR, answer="Tora Lind rewrote the original answer of the council, and opened the harbour.")
    assert refusal(pair, "Tora Lind opened the harbour once the original answer was rewritten.") != "empty"
    assert refusal(pair, "Tora Lind changed the original answer of the council.") == ""


def test_without_deciding_words_only_the_form_is_checked() -> None:
    pair = replace(PAIR, key="", aliases=())
    taken = judged_rewrite(pair, reply("An engineer did, in the year 1911."))
    assert (taken.refused, taken.checked) == ("", False)
    assert refusal(pair, "The reference answer does not say.") == "talks about the task"


def test_the_acceptance_rate_counts_what_was_taken_and_why_the_rest_was_not() -> None:
    taken, empty, lost = (judged_rewrite(PAIR, reply(text)) for text in ("Tora Lind did.", "", "Maro Tensk did."))
    assert acceptance([taken, empty, lost, lost]) == {
        "acceptance_rate": 0.25, "rewrites": 4, "refused/empty": 1, "refused/lost the answer": 2,
    }  # fmt: skip
    assert acceptance([]) == {"acceptance_rate": 0, "rewrites": 0}
