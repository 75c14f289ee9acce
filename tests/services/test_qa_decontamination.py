"""The QA build's questions and texts against the evaluations, however many are looked for at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from iar.methods.contamination import Evaluation
from iar.methods.digest import digest_json
from iar.records import Document, QAPair, Reject
from iar.services import qa_decontamination
from iar.services.decontamination import Decontamination
from iar.services.qa_decontamination import Cleaned, clean_questions, clean_texts

BREAD = "Name three kinds of bread that are baked in an oven without any yeast at all."
FRENCH = Evaluation("french", (("f1", "What is the capital of France?"),))
BAKING = Evaluation("baking", (("b1", BREAD),))

Item = TypeVar("Item", Document, QAPair)


def pair(name: str, split: str, question: str) -> QAPair:
    return QAPair(name, "doc", f"chunk-{name}", split, "fact_extraction", question, "a", "", (), "a", "offline")


def document(name: str, text: str) -> Document:
    return Document(name, "Title", text, f"{name}.md", "text/markdown", "0")


def divided(items: Sequence[Item], cleaned: Cleaned) -> tuple[list[Item], list[Reject], Decontamination]:
    return [one for one in items if one.id not in cleaned.dropped], list(cleaned.dropped.values()), cleaned.found


def test_a_planted_leak_of_our_own_is_found_even_when_short() -> None:
    # Shorter than 8 words: no 8-gram exists.
    pairs = [pair("a", "train", "Who built the mill?"), pair("b", "test", "Who built THE mill?")]
    kept, rejects, found = divided(pairs, clean_questions(pairs, [], []))
    assert kept == [pairs[1]]
    # The locked test is named by its id alone, and the words of its question are not shown either.
    assert rejects == [Reject("decontaminated", "a", "gives away a prompt of test (exact)", "", "b", "contaminated")]
    assert [(check.evaluation, check.unchecked) for check in found.checks] == [
        ("validation", "it has no prompts"),
        ("test", ""),
    ]


def test_a_training_answer_may_quote_the_documents_but_no_general_prompt() -> None:
    quoting = replace(pair("a", "train", "Who built it?"), answer=f"It says: {BREAD}")
    held_out = pair("v", "validation", 'How is it completed: "Name three kinds of bread that are baked in an ____"?')
    kept, rejects, _ = divided([quoting, held_out], clean_questions([quoting, held_out], [], []))
    assert (kept, rejects) == ([quoting, held_out], [])
    kept, rejects, _ = divided([quoting, held_out], clean_questions([quoting, held_out], [], [BAKING]))
    assert kept == [held_out] and [reject.counterpart for reject in rejects] == [BREAD]


def test_a_held_out_question_that_a_document_asks_itself_goes() -> None:
    asked = "Which engineer built the tall mill on the hill of Velm?"
    pairs = [pair("t", "train", "Who?"), pair("v", "validation", asked), pair("w", "test", "Who was Tora Lind?")]
    read = [document("d1", f"Questions\n\n{asked}\n\nTora Lind, an engineer.")]
    kept, rejects, _ = divided(pairs, clean_questions(pairs, read, []))
    assert [one.id for one in kept] == ["t", "w"]
    assert rejects == [Reject("decontaminated", "v", "stands in a document (validation)", asked, "d1", "contaminated")]


def test_a_document_that_holds_an_evaluated_prompt_goes_before_questions_are_made() -> None:
    documents = [document("d1", "The mill is old."), document("d2", f"An exam.\n\n{BREAD}\n\nIt was hard.")]
    cleaned = clean_texts("documents", documents, [BAKING, FRENCH], "uncontaminated")
    kept, rejects, found = divided(documents, cleaned)
    assert kept == documents[:1]
    assert [(one.step, one.item_id, one.counterpart) for one in rejects] == [("uncontaminated", "d2", BREAD)]
    assert [(check.items, check.hits) for check in found.checks] == [(2, 1), (2, 0)]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_the_outcome_is_the_same_however_few_questions_are_looked_for_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        "Which engineer built the tall mill of Velm?",
        "Why did the ferry to Osk stop running in winter?",
        "How many arches carry Marrow Bridge over the river?",
        "When was the saltworks of Pellam closed for good?",
        "What colour is the roof of the Greywether light?",
    ]
    pairs = [
        *(pair(f"h{place}", ("test", "validation")[place % 2], text) for place, text in enumerate(asked)),
        *(pair(f"t{place}", "train", f"Say: {text}") for place, text in enumerate(asked)),
        pair("clean", "train", "Who keeps the lamp of the harbour alight at night?"),
        pair("general", "train", BREAD),
    ]
    read = [document("d1", f"Questions\n\n{asked[4]}\n\nTora Lind, an engineer.")]
    whole = clean_questions(pairs, read, [BAKING])
    monkeypatch.setattr(qa_decontamination, "HELD_OUT", at_once)
    parts = clean_questions(pairs, read, [BAKING])

    assert list(whole.dropped) == ["h4", "t0", "t1", "t2", "t3", "general"]
    assert dict(parts.dropped) == dict(whole.dropped)
    planted = {(check.evaluation, check.planted >= 1) for check in parts.found.checks}
    assert planted == {("validation", True), ("test", True), ("baking", True)}
    assert [replace(check, planted=0) for check in parts.found.checks] == [
        replace(check, planted=0) for check in whole.found.checks
    ]
    left = [(one.id, one.question) for one in pairs if one.split == "test" and one.id != "h4"]
    assert whole.found.checks[1].digest == digest_json(left)
