"""The rule-based teacher: questions that stand alone and answers that stand in the chunk."""

from collections import Counter

import pytest

from iar.methods.chunking import chunk_document
from iar.methods.cloze import GAP
from iar.methods.funnel import check_funnel
from iar.methods.offline_teacher import OfflineTeacher, certify_grounded, certify_self_contained
from iar.methods.teaching import TeacherOutput
from iar.records import Chunk, Document, QAPair

FIRST = (
    "Tora Lind was an engineer who built mills on the coast of Velm. She was born in Osker on 3 May 1806. "
    "Her first mill cost 2,300 crowns. The bailiff Henrik Falk lent her 900 crowns. He lived at Heron Court for years. "
    'The crank in the cellar is called "the tickler", and it turns slowly.'
)
SECOND = "Lind moved to the Tall Mill in 1846. It cost 12 crowns. Oats cost 3 shillings."


def document(title: str, *paragraphs: str) -> Document:
    text = "\n\n".join([title, *paragraphs])
    return Document(f"doc-{title[:4].lower()}", title, text, f"{title}.txt", "text/plain", "")


def build(seed: int) -> TeacherOutput:
    mill = document("The Tall Mill", "The Tall Mill is a mill. Nothing more.")
    documents = [document("Tora Lind", FIRST, SECOND), mill]
    chunks = [chunk for item in documents for chunk in chunk_document(item, 420)]
    return OfflineTeacher().build(documents, chunks, 12, seed)


@pytest.fixture(scope="module")
def taught() -> TeacherOutput:
    return build(seed=0)


def asked(taught: TeacherOutput, answer: str) -> QAPair:
    return next(pair for pair in taught.pairs if (pair.key or pair.answer) == answer)


def test_a_cloze_names_the_subject_and_hides_the_anchor_only(taught: TeacherOutput) -> None:
    assert asked(taught, "Velm").question == (
        "In the account of Tora Lind, how is the sentence completed: "
        '"Tora Lind was an engineer who built mills on the coast of ____."?'
    )


def test_a_pronoun_for_the_title_is_replaced_by_it(taught: TeacherOutput) -> None:
    assert '"Tora Lind was born in ____ on 3 May 1806."' in asked(taught, "Osker").question
    assert '"Tora Lind\'s first mill cost ____."' in asked(taught, "2,300 crowns").question


def test_a_pronoun_for_someone_else_gets_the_sentence_before(taught: TeacherOutput) -> None:
    assert '"The bailiff Henrik Falk lent her 900 crowns. He lived at ____ for years."' in (
        asked(taught, "Heron Court").question
    )


def test_a_person_stays_the_subject_after_an_opening_phrase() -> None:
    doc = document(
        "Tora Lind", "Tora Lind was born in Osker. In 1852 Lind founded a school. She left it to Henrik Falk."
    )
    questions = [pair.question for pair in OfflineTeacher().build([doc], chunk_document(doc, 700), 8, seed=0).pairs]
    assert any('"Tora Lind left it to ____."' in question for question in questions)


def test_context_that_would_make_the_passage_too_long_is_not_shown() -> None:
    before = "The bailiff Henrik Falk " + "and the old council of the town " * 8 + "gave the money."
    doc = document("Tall Mill", f"Tall Mill is a mill. {before} He lived at Heron Court for many years.")
    output = OfflineTeacher().build([doc], chunk_document(doc, 900), 12, seed=0)
    assert ("dangling reference", "Heron Court") in {
        (reject.reason, "Heron Court" if "He lived at ____" in reject.text else "") for reject in output.rejects
    }


def test_definitions_are_asked_for_the_subject_and_for_named_things(taught: TeacherOutput) -> None:
    definitions = {p.question: p.answer for p in taught.pairs if p.question_type == "mechanism_explanation"}
    assert definitions == {
        "Who or what was Tora Lind?": "Tora Lind was an engineer who built mills on the coast of Velm.",
        'What is called "the tickler" in the account of Tora Lind?': 'The crank in the cellar is called "the tickler".',
    }


def test_another_documents_title_makes_a_relation(taught: TeacherOutput) -> None:
    assert asked(taught, "Tall Mill").question_type == "comparison_and_relation"


def test_aliases_are_equivalents_only(taught: TeacherOutput) -> None:
    assert asked(taught, "2,300 crowns").aliases == ("2300 crowns", "2,300", "2300")
    assert asked(taught, "3 May 1806").aliases == ("May 3, 1806", "May 3 1806")


def test_every_drop_is_on_record_and_the_funnel_adds_up(taught: TeacherOutput) -> None:
    check_funnel(taught.funnel, Counter((reject.step, reject.reason) for reject in taught.rejects))
    assert {step.step for step in taught.funnel} == {"anchors", "applicable", "questions", "verified", "answered"}
    reasons = {reject.reason for reject in taught.rejects}
    assert {"design_motivation not applicable", "too little context", "guessable from the title"} <= reasons


def test_the_same_input_gives_the_same_output(taught: TeacherOutput) -> None:
    assert build(seed=1) == taught


def test_a_long_sentence_is_clipped_at_clauses_around_the_gap() -> None:
    long = "The yard, " + "which lay by the old river wall and had been there for many long years, " * 3
    doc = document("Osker", f"{long}was sold by Tora Lind to the town, which was glad. Nobody asked.")
    output = OfflineTeacher().build([doc], chunk_document(doc, 900), 8, seed=0)
    question = asked(output, "Tora Lind").question
    assert "… " in question
    assert f"was sold by {GAP} to the town" in question
    assert len(question.split()) < 45


CLOZE = 'In the account of Mill, how is the sentence completed: "{}"?'


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (CLOZE.format("The wheel was cut from ____ in spring."), ""),
        (CLOZE.format("It was cut from ____ in spring."), "dangling reference"),
        (CLOZE.format("This wheel was cut from ____ oak."), "dangling reference"),
        ('Which words complete the sentence: "The wheel was cut from ____ in spring."?', "does not name its subject"),
        ("What is Mill", "no question mark"),
        ("According to the text, what is Mill?", "refers to the text"),
        (CLOZE.format("Wheels cost ____."), "too little context"),
    ],
)
def test_the_self_containedness_certifier(question: str, reason: str) -> None:
    assert certify_self_contained(question, "Mill") == reason


def test_the_groundedness_certifier() -> None:
    chunk = Chunk("c", "d", 0, 40, "The wheel was cut from oak, not from elm.")
    assert certify_grounded("oak", "The wheel was cut from ____, not from elm.", chunk) == ""
    assert certify_grounded("ash", "The wheel was cut from ____.", chunk) == "answer does not stand in the chunk"
    assert certify_grounded("elm", "____, not from elm.", chunk) == "answer stands beside the gap"


def test_a_skeleton_is_a_part_of_the_document_only() -> None:
    doc = document("Tora Lind", FIRST, "History", SECOND + " " + FIRST)
    skeleton = OfflineTeacher().build([doc], chunk_document(doc, 700), 8, seed=0).rewrite_inputs[0]
    assert skeleton.text.splitlines()[:3] == [
        "Tora Lind",
        "- Tora Lind was an engineer who built mills on the coast of Velm",
        "History",
    ]
    assert "Key terms: Velm; Osker" in skeleton.text
    assert len(skeleton.text) <= 0.35 * len(doc.text)


def test_the_answer_to_a_cloze_is_its_sentence_and_the_next_one_and_the_gap_is_the_key(taught: TeacherOutput) -> None:
    pair = asked(taught, "Heron Court")
    assert pair.answer == (
        'He lived at Heron Court for years. The crank in the cellar is called "the tickler", and it turns slowly.'
    )
    assert pair.key == "Heron Court"
