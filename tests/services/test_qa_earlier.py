"""A new document set's questions beside those of sets that the model has learned before."""

from pathlib import Path

import pytest

from iar.errors import UserError
from iar.records import Document, EarlierSet, QAPair, RetainedPair, read_records, write_records
from iar.services.earlier_sets import EarlierSets, start_of
from iar.services.qa_decontamination import clean_questions
from iar.services.qa_earlier import earlier_evaluations, keep_retention, learned_questions, learned_texts

ASKED = "Which engineer built the tall mill on the hill of Velm?"
TAUGHT = "Which lamp burns in the tower of Velm at night?"
TESTED = "Who opened the northern harbour of Velm in spring?"
OWN = "Who carved the wooden ferry of Ostrand?"
RUN = "first-0123456789"


def pair(name: str, split: str, question: str) -> QAPair:
    return QAPair(name, "doc", f"chunk-{name}", split, "fact_extraction", question, "a", "", (), "a", "offline")


def document(name: str, text: str) -> Document:
    return Document(name, "Title", text, f"{name}.md", "text/markdown", "0")


@pytest.fixture
def sets(tmp_path: Path) -> EarlierSets:
    """One earlier set with a question in each split."""
    data = tmp_path / "sets" / "1" / "data"
    data.mkdir(parents=True)
    for split, question in (("train", TAUGHT), ("validation", ASKED), ("test", TESTED)):
        write_records(data / f"{split}.jsonl", [pair(split, split, question)])
    write_records(data / "documents.jsonl", [document("d", "The mill of Velm stands on a hill.")])
    write_records(tmp_path / "sets" / "sets.jsonl", [EarlierSet(RUN, "c" * 64, "d" * 64, 1)])
    return EarlierSets(tmp_path / "sets")


def test_without_earlier_sets_nothing_changes(tmp_path: Path) -> None:
    none = EarlierSets.of({})
    assert earlier_evaluations(none) == [] and not learned_texts(none) and not learned_questions(none)
    assert keep_retention(none, [], tmp_path) == (0, []) and not list(tmp_path.iterdir())
    assert start_of({"base": tmp_path}) == tmp_path


def test_the_start_is_the_checkpoint_after_the_last_set(sets: EarlierSets, tmp_path: Path) -> None:
    assert sets.folder is not None
    assert start_of({"base": tmp_path, "earlier": sets.folder}) == sets.folder / "1" / "checkpoint"


def test_a_training_pair_that_asks_an_earlier_held_out_question_goes(sets: EarlierSets) -> None:
    pairs = [pair("a", "train", ASKED), pair("b", "train", TESTED), pair("c", "train", OWN), pair("v", "test", "Who?")]
    cleaned = clean_questions(pairs, learned_texts(sets), earlier_evaluations(sets), learned_questions(sets))
    assert set(cleaned.dropped) == {"a", "b"}
    assert cleaned.dropped["a"].reason == f"gives away a prompt of validation of {RUN} (exact)"
    # The earlier test stays locked: its question is named, not shown.
    assert (cleaned.dropped["b"].text, cleaned.dropped["b"].counterpart) == ("", "test")
    assert [(one.evaluation, one.unchecked) for one in cleaned.found.checks][2:] == [
        (f"validation of {RUN}", ""), (f"test of {RUN}", "")
    ]  # fmt: skip


def test_a_held_out_question_that_was_taught_before_goes(sets: EarlierSets) -> None:
    pairs = [
        pair("t", "train", OWN),
        pair("v", "validation", TAUGHT),
        pair("w", "test", "Who carved the northern gate?"),
    ]
    cleaned = clean_questions(pairs, learned_texts(sets), [], learned_questions(sets))
    (dropped,) = cleaned.dropped.values()
    assert (dropped.item_id, dropped.step, dropped.outcome) == ("v", "decontaminated", "contaminated")
    assert (dropped.reason, dropped.counterpart) == ("taught with earlier documents (validation)", "train")


def test_an_earlier_question_that_the_new_documents_ask_tells_nothing(sets: EarlierSets, tmp_path: Path) -> None:
    assert keep_retention(sets, [document("n", "Another text.")], tmp_path) == (1, [])
    (kept,) = read_records(tmp_path / "retention.jsonl", RetainedPair)
    assert (kept.id, kept.run_id, kept.question) == (f"{RUN}/validation", RUN, ASKED)
    with pytest.raises(UserError, match=r"run\.on: the documents ask all 1 validation questions of the earlier sets"):
        keep_retention(sets, [document("n", f"Questions\n\n{ASKED}\n\nTora Lind.")], tmp_path)
