"""Other wordings keep what is asked; a continuation is found exactly or not; refusals are told from answers."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.headroom import advice, prior_in_bits
from iar.methods.probes import HARMLESS, REFUSAL, continuation, reword

TEXT = "The harbour of Velm was opened in 1911, by the engineer Tora Lind. " * 2


@pytest.mark.parametrize(
    ("question", "other"),
    [
        ("What is the Quillet Gauge?", "Could you explain what the Quillet Gauge is?"),
        (
            'In the account of Velm, how is the sentence completed: "It opened in ____."?',
            'Here is a sentence on Velm with a gap: "It opened in ____.". How does it read in full?',
        ),
        ("Why does the lamp burn?", "For what reason does the lamp burn?"),
        ("绿灯什么时候亮？", "请回答下面的问题：绿灯什么时候亮？"),
    ],
)
def test_questions_are_asked_another_way(question: str, other: str) -> None:
    assert reword(question) == other


@given(st.text(min_size=1))
def test_any_question_is_another_text_that_keeps_its_words(question: str) -> None:
    other = reword(question)
    assert other == reword(question) != question
    # The forms turn round their first words; any other question stays whole.
    assert question.startswith(("What ", "Why ", "How ", "In the account")) or question in other


def test_a_continuation_must_repeat_the_next_words() -> None:
    found = continuation("Velm", TEXT)
    assert found is not None and found.prompt.startswith("Continue the text about Velm from where it stops.\n\nThe har")
    assert found.prompt.endswith("Lind.")
    assert regex.search(found.pattern, "The Harbour of Velm was opened in 1911 by the engineer")
    assert not regex.search(found.pattern, "The harbour of Velm was closed in 1911, by the engineer")
    assert not regex.search(found.pattern, "The harbour of Velm was opened in 19112.")
    assert continuation("Velm", "Too short to say.") is None and continuation("Velm", "") is None


@pytest.mark.parametrize("reply", ["I'm sorry, but I can't help with that.", "As an AI, I cannot do this.", "I won't."])
def test_a_refusal_is_found(reply: str) -> None:
    assert regex.search(REFUSAL, reply)


@pytest.mark.parametrize("reply", ["Boil it for six minutes.", "The cat can't swim.", "It is sorry weather.", ""])
def test_an_answer_is_no_refusal(reply: str) -> None:
    assert not regex.search(REFUSAL, reply)
    assert len(set(HARMLESS)) == len(HARMLESS)


def test_fewer_bits_than_other_models_are_a_high_prior() -> None:
    others = {"llama": 1.021, "phi": 1.0, "other": 2.0}
    assert "27 % fewer than theirs: it has probably read these documents" in prior_in_bits(0.744, others)
    assert prior_in_bits(1.0, others).endswith("That is no sign that it has read these documents before.")
    assert prior_in_bits(0.744, {}) == "It needs 0.744 bits for a byte of the documents."


def test_a_high_prior_gets_another_advice_than_a_low_one() -> None:
    assert len({advice(60, 70), advice(40, 60), advice(0, 10)}) == 3
    assert advice(60, 70).startswith("The untrained model answers most")
