"""SDFT's check of a rewrite: kept only where it is the same answer and nothing but an answer."""

from dataclasses import replace

import pytest

from iar.methods.self_distillation import REWRITE_PROMPT, acceptance_rate, judged_rewrite, refusal, rewrite_prompt
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
    ],
)
def test_any_other_rewrite_leaves_the_original_with_a_reason(text: str, reason: str) -> None:
    kept = judged_rewrite(PAIR, reply(text))
    assert (kept.answer, kept.refused) == (PAIR.answer, reason)


def test_a_rewrite_cut_off_is_refused() -> None:
    assert refusal(PAIR, reply("The engineer Tora Lind opened the", truncated=True)) == "cut off at the token limit"


def test_words_of_the_documents_are_no_talk_about_the_task() -> None:
    pair = replace(PAIR, answer="Tora Lind rewrote the original answer of the council, and opened the harbour.")
    assert refusal(pair, reply("Tora Lind opened the harbour once the original answer was rewritten.")) != "empty"
    assert refusal(pair, reply("Tora Lind changed the original answer of the council.")) == ""


def test_without_deciding_words_only_the_form_is_checked() -> None:
    pair = replace(PAIR, key="", aliases=())
    taken = judged_rewrite(pair, reply("An engineer did, in the year 1911."))
    assert (taken.refused, taken.checked) == ("", False)
    assert refusal(pair, reply("The reference answer does not say.")) == "talks about the task"


def test_the_acceptance_rate_counts_what_was_taken() -> None:
    taken, refused = judged_rewrite(PAIR, reply("Tora Lind did.")), judged_rewrite(PAIR, reply(""))
    assert acceptance_rate([taken, refused, refused, refused]) == 0.25
    assert acceptance_rate([]) == 0.0
