"""The only ways to the held-out test questions: after the pick is fixed and never unseen, or sealed against leaks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iar.errors import UserError
from iar.methods.contamination import Evaluation
from iar.methods.digest import digest_file, digest_json
from iar.records import CrossDocumentPair, QAPair, Selection, read_records, to_json
from iar.services.evaluations import own_evaluation
from iar.services.registry import Registry

READ_TEST = "read-test"
_TEST_FILE = "test.jsonl"
_CROSS_FILE = "test-cross-document.jsonl"


def open_locked_test(data: Path, selection: Selection, registry: Registry) -> list[QAPair]:
    """Return the test questions with their answers, those over two documents last, as CrossDocumentPair.

    Before that, enter the read into the registry.

    A further read is possible, and its event says how many came before and for which picks. Raises
    UserError without a pick, for a selection the registry does not know, and for other data than it was made on.
    """
    if not selection.pick:
        raise UserError("the test stays locked: the selection has no pick; lower the bar in select or train again")
    decision = digest_json(to_json(selection))
    if not registry.labels([decision]):
        raise UserError(
            f"the test stays locked: the selection of {selection.pick} is not in the registry; run the selector first"
        )
    if digest_file(data / "validation.jsonl") != selection.dataset_digest:
        raise UserError(
            f"the test stays locked: {data} holds other questions than those {selection.pick} was picked on; "
            "run the selector on this data"
        )
    subject = digest_file(data / _TEST_FILE)
    earlier = [read["pick"] for read in readings(data, registry)]
    payload = {
        "pick": selection.pick,
        "candidate_digest": selection.candidate_digest,
        "decision": decision,
        "earlier_reads": len(earlier),
        "other_picks_before": sorted(set(earlier) - {selection.pick}),
    }
    registry.event(READ_TEST, subject, payload)
    return list(_questions(data))


def sealed_test(data: Path) -> Evaluation:
    """Return the test for looking for its questions in training data: no reading, for a hit names ids alone."""
    return own_evaluation("test", _questions(data))


def _questions(data: Path) -> Iterator[QAPair]:
    yield from read_records(data / _TEST_FILE, QAPair)
    across = data / _CROSS_FILE
    if across.is_file():
        yield from read_records(across, CrossDocumentPair)


def readings(data: Path, registry: Registry) -> list[dict[str, Any]]:
    """Return every reading of the test so far, in order: pick, candidate_digest, decision and what came before."""
    events = registry.events(digest_file(data / _TEST_FILE))
    return [event.payload for event in events if event.kind == READ_TEST]
