"""The questions of a new document set beside the sets that the model has learned before.

What the model may have learned already is no fair question any more, and what it is still to be asked is no training
data: both go. Which of the earlier questions stay to tell what is retained is settled here too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from iar.errors import UserError
from iar.methods.contamination import Evaluation
from iar.records import Document, QAPair, Reject, RetainedPair, Retelling, read_records, write_records
from iar.services.earlier_sets import RETAINED, EarlierSets, retained_questions
from iar.services.evaluations import own_evaluation
from iar.services.qa_decontamination import asked_in
from iar.services.record_file import Both, Lines
from iar.services.test_lock import sealed_test

STEP = "retained"


def earlier_evaluations(sets: EarlierSets) -> list[Evaluation]:
    """Return the questions that models are asked about each set, or were; of the tests a hit names ids alone."""
    found = []
    for one, data in zip(sets, sets.data, strict=True):
        validation = own_evaluation("validation", read_records(data / "validation.jsonl", QAPair))
        found += [replace(own, name=f"{own.name} of {one.run_id}") for own in (validation, sealed_test(data))]
    return found


def learned_texts(sets: EarlierSets) -> Iterable[Document | Retelling]:
    """Return what Inject read of each set, to be gone through again and again; () where there is none."""
    found: Iterable[Document | Retelling] = ()
    for data in sets.data:
        found = Both[Document | Retelling](found, Lines(data / "documents.jsonl", Document))
        retold = Lines(data / "retellings.jsonl", Retelling)
        found = Both[Document | Retelling](found, retold) if retold.path.is_file() else found
    return found


def learned_questions(sets: EarlierSets) -> Iterable[QAPair]:
    """Return the questions that Align trained on, to be gone through again and again; () where there are none."""
    found: Iterable[QAPair] = ()
    for data in sets.data:
        found = Both[QAPair](found, Lines(data / "train.jsonl", QAPair))
    return found


def keep_retention(sets: EarlierSets, read: Iterable[Document | Retelling], out: Path) -> tuple[int, list[Reject]]:
    """Write the questions that tell what is retained under `out`; return how many there were, and which of them go.

    `read` is what Inject will read: what it asks word for word tells nothing. Without earlier sets nothing is written.
    Raises UserError where no question stays.
    """
    pairs = list(_validation_questions(sets))
    if not pairs:
        return 0, []
    dropped = asked_in(pairs, read, STEP)
    if len(dropped) == len(pairs):
        raise UserError(
            f"run.on: the documents ask all {len(pairs)} validation questions of the earlier sets word for word, so "
            "nothing could tell what is retained; take those texts out of documents.path"
        )
    write_records(out / RETAINED, (pair for pair in pairs if pair.id not in dropped))
    return len(pairs), list(dropped.values())


def _validation_questions(sets: EarlierSets) -> Iterator[RetainedPair]:
    """Yield those of each set, but what the documents of a later set asked themselves: the newest has settled that."""
    for one, data in list(zip(sets, sets.data, strict=True))[-1:]:
        yield from retained_questions(data)
        for pair in read_records(data / "validation.jsonl", QAPair):
            yield RetainedPair(**vars(pair) | {"id": f"{one.run_id}/{pair.id}", "run_id": one.run_id})
