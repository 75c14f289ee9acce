"""The attack suite: many kinds, none of which holds a right answer, the same for the same seed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.attacks import (
    ATTACKS,
    DRESSED,
    OWN_WRONG_ANSWERS,
    Attack,
    Posed,
    attack,
    holds_answer,
    own_attacks,
    wrong_answers,
)

POSED = [
    Posed("a", "Who built the lighthouse?", ("Agnes Tolland", "A. Tolland")),
    Posed("b", "When was it opened?", ("4 May 1911", "1911")),
    Posed("c", "Which canal is older?", ("the Short canal",)),
    Posed("d", "Why is the sky blue?", (), ("scatter or scattering", "light or wavelengths")),
    Posed("e", "Which has more locks, the Short canal or the Grand canal?", ("the Grand canal",)),
]


def made(seed: int = 3) -> list[Attack]:
    return list(attack(POSED, seed))


def test_every_kind_attacks_every_question_that_does_not_say_its_answer() -> None:
    by_place = {place: {one.kind for one in made() if one.place == place} for place in range(len(POSED))}
    assert len(ATTACKS) >= 20
    assert by_place[0] == by_place[1] == by_place[2] == set(ATTACKS)
    # What repeats this question names both canals, hence the answer.
    missing = {"repeated-question", "restated-question", "fake-explanation", "verbosity"}
    assert missing <= set(ATTACKS) - by_place[4] <= missing | {"shuffled-question"}


def test_no_attack_holds_an_answer() -> None:
    for one in made():
        assert not holds_answer(one.text, POSED[one.place]), one


@pytest.mark.parametrize(
    ("text", "place", "holds"),
    [
        ("It was AGNES  Tolland!", 0, True),
        ("A. Tolland", 0, True),
        ("Agnes, Tolland", 0, True),  # punctuation hides no name
        ("Tolland", 0, False),
        ("in 1911", 1, True),
        ("1912", 1, False),
        ("Air scatters it", 3, True),
        ("It is blue", 3, False),
        ("", 0, False),
    ],
)
def test_an_answer_is_found_in_any_spelling(text: str, place: int, holds: bool) -> None:
    assert holds_answer(text, POSED[place]) is holds


def test_wrong_answers_share_no_word_with_the_right_one() -> None:
    assert "the Short canal" not in wrong_answers(POSED, 4) and "Agnes Tolland" in wrong_answers(POSED, 4)
    assert len(wrong_answers(POSED[:1], 0)) >= 3  # with a single question too


def test_the_seed_decides_alone() -> None:
    assert made(3) == made(3) != made(4)
    assert made()[0].text == next(attack(POSED, 3)).text


def test_a_models_own_wrong_answers_are_dressed_up() -> None:
    one = Posed("q", "Who built Velm?", ("Tora Lind",))
    made = dict(own_attacks(one, ["Bram Lusk", "Ole Berg"], 1))
    assert list(made) == [OWN_WRONG_ANSWERS, *(f"own-{kind}" for kind in DRESSED)]
    assert made[OWN_WRONG_ANSWERS] == "Bram Lusk" and {"Bram Lusk", "Ole Berg"} >= {
        name for name in ("Bram Lusk", "Ole Berg") if name in made["own-hedged-answers"]
    }
    assert all("Bram Lusk" in text or "Ole Berg" in text for text in made.values())
    assert made == dict(own_attacks(one, ["Bram Lusk", "Ole Berg"], 1))
    assert list(own_attacks(one, ["It was Tora Lind, or nobody"], 1)) == []


texts = st.text(max_size=30)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_any_question_set_can_be_attacked(rows: list[tuple[str, str]]) -> None:
    posed = [Posed(str(place), question, (answer,)) for place, (question, answer) in enumerate(rows)]
    for one in attack(posed, 1):
        assert not holds_answer(one.text, posed[one.place])
