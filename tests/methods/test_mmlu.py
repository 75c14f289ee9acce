"""The letter of a multiple-choice reply: what must be read, and what must not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.mmlu import LETTERS, find_letter, mmlu_prompt

CHOICES = ["Helium", "Hydrogen", "Neon", "Oxygen"]


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("b)", "B"),
        ("[C]", "C"),
        ("**B**", "B"),
        ('"D"', "D"),
        ("B. Hydrogen", "B"),
        ("B) Hydrogen", "B"),
        ("B - Hydrogen", "B"),
        ("B\nBecause it is light", "B"),
        ("B, because it is light", "B"),
        ("A because helium is light", "A"),
        ("The answer is B", "B"),
        ("The answer is A.", "A"),
        ("Answer: b)", "B"),
        ("Answer:\nB", "B"),
        ("<answer>B</answer>", "B"),
        ("The correct answer is **(C)** Neon.", "C"),
        ("The answer to this question is D", "D"),
        ("The correct option is C, because it glows.", "C"),
        ("D is the correct answer.", "D"),
        ("Option C", "C"),
        ("I think it is (D).", "D"),
        (r"$\boxed{\text{C}}$", "C"),
        ("Let me think.\nC", "C"),
        # Reasoning before the answer, and a correction of it.
        ("Option A is wrong. The answer is C.", "C"),
        ("The answer is A. Wait, the answer is B", "B"),
        ("Options A and B are too light. The answer is D.", "D"),
        # No letter, but the exact text of one choice.
        ("Oxygen", "D"),
        ("oxygen.", "D"),
        ("The answer is Oxygen.", "D"),
        ("Oxygen\nPeople breathe it.", "D"),
    ],
)
def test_reads_the_letter_of_a_clear_reply(reply: str, letter: str) -> None:
    assert find_letter(reply, CHOICES) == letter


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I do not know.",
        "E",
        # "A" as the article, and letters inside other words.
        "A gas that people breathe is everywhere.",
        "The answer is a matter of taste.",
        "The answer is A big question",
        "A-level exams are hard",
        "Plan B's result",
        "Vitamin C helps.",
        # Several letters, hedges, repeated choices.
        "A or B",
        "Both A and B.",
        "The answer is A/B",
        "The answer is B or C",
        "The answer is (B) or (C)",
        "The answer is A or the answer is B",
        "A, B and C are all correct",
        "A B C D",
        "A. Helium\nB. Hydrogen\nC. Neon\nD. Oxygen",
        # Only what it is not.
        "The answer is not B",
        "It is not (B)",
        "Option A is wrong.",
        "None of the above",
        "Helium, hydrogen",
    ],
)
def test_reads_no_letter_where_none_is_settled_on(reply: str) -> None:
    assert find_letter(reply, CHOICES) is None


def test_a_choice_that_stands_twice_names_no_letter() -> None:
    assert find_letter("Neon", ["Neon", "Helium", "neon", "Argon"]) is None


@given(st.sampled_from(LETTERS), st.sampled_from(["{}", "({})", "{}.", "The answer is {}", "**{}**", "Answer: {}"]))
def test_every_letter_is_read_in_every_form(letter: str, form: str) -> None:
    assert find_letter(form.format(letter), CHOICES) == letter


@given(st.text())
def test_any_text_is_a_letter_or_unparsed(reply: str) -> None:
    assert find_letter(reply, CHOICES) in (*LETTERS, None)


def test_prompt_asks_for_the_letter_and_shows_four_choices() -> None:
    assert mmlu_prompt(" Which gas? ", CHOICES) == (
        "Answer the multiple-choice question with the letter of the right choice only.\n\n"
        "Which gas?\nA. Helium\nB. Hydrogen\nC. Neon\nD. Oxygen"
    )
