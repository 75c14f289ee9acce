"""The only ways to the held-out test questions: after the pick is fixed and never unseen, or sealed against leaks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iar.errors import UserError
from iar.methods.contamination import Evaluation
from iar.methods.digest import digest_file, digest_json, digest_text
from iar.methods.textnorm import normalise
from iar.records import CrossDocumentPair, QAPair, Selection, TestReading, read_records, to_json
from iar.services.deeds import Deed
from iar.services.evaluations import own_evaluation
from iar.services.registry import Registry

READ_TEST = "read-test"
TAKEN_BEFORE = "iar.test.taken_before"  # the tag of a model version, where its test was no first look
_TEST_FILE = "test.jsonl"
_CROSS_FILE = "test-cross-document.jsonl"
_DIGITS = 12  # of a question's digest: a chance meeting of two among a million questions is one in 500


def open_locked_test(
    data: Path, selection: Selection, registry: Registry, run_id: str = "", seed: int = 0
) -> tuple[list[QAPair], TestReading]:
    """Return the test questions with their answers, those over two documents last, as CrossDocumentPair.

    Before that, enter the read into the registry, with the digests of the questions: a test that shares some with
    it is known by them, from whatever documents it was built.

    A further read is possible, and the reading says how many came before and for which other weights. Raises
    UserError without a pick, for a selection the registry does not know, and for other data than it was made on.
    """
    if not selection.pick:
        raise UserError("the test stays locked: the selection has no pick; lower the bar in select or train again")
    decision = digest_json(to_json(selection))
    if registry.labels([decision]).get(decision, ("", ""))[0] != "decision":
        raise UserError(
            f"the test stays locked: the selection of {selection.pick} is not in the registry; run the selector first"
        )
    if digest_file(data / "validation.jsonl") != selection.dataset_digest:
        raise UserError(
            f"the test stays locked: {data} holds other questions than those {selection.pick} was picked on; "
            "run the selector on this data"
        )
    subject = digest_file(data / _TEST_FILE)
    asked = _asked(data)
    reading = _reading(selection, decision, asked, _earlier(subject, asked, registry))
    payload = to_json(reading) | {"other_picks": list(reading.other_picks), "asked": sorted(asked)}
    deed = Deed(READ_TEST, {"pick": selection.pick, "test": subject}, run_id, seed=seed)
    registry.event(READ_TEST, subject, payload)
    used = [("model", selection.candidate_digest), ("decision", decision), ("validated-on", selection.dataset_digest)]
    deed.record(registry, registry.events(subject)[-1], used)
    return list(_questions(data)), reading


def reading_of(decision: str, registry: Registry) -> TestReading | None:
    """Return the first opening of the test for a decision, with what had come before it; None where there is none."""
    for event in registry.events():
        if event.kind == READ_TEST and event.payload["decision"] == decision:
            known = {name: event.payload[name] for name in TestReading.__dataclass_fields__}
            return TestReading(**known | {"other_picks": tuple(known["other_picks"])})
    return None


def sealed_test(data: Path) -> Evaluation:
    """Return the test for looking for its questions in training data: no reading, for a hit names ids alone."""
    return own_evaluation("test", _questions(data))


def _questions(data: Path) -> Iterator[QAPair]:
    yield from read_records(data / _TEST_FILE, QAPair)
    across = data / _CROSS_FILE
    if across.is_file():
        yield from read_records(across, CrossDocumentPair)


def _asked(data: Path) -> frozenset[str]:
    return frozenset(digest_text(normalise(pair.question))[:_DIGITS] for pair in _questions(data))


def _earlier(subject: str, asked: frozenset[str], registry: Registry) -> list[dict[str, Any]]:
    """Return the openings so far of this test, and of every other that has some of its questions."""
    events = [event for event in registry.events() if event.kind == READ_TEST]
    shared = (event for event in events if event.subject == subject or asked & set(event.payload.get("asked", ())))
    return [event.payload for event in shared]


def _reading(selection: Selection, decision: str, asked: frozenset[str], earlier: list[dict[str, Any]]) -> TestReading:
    others = [read for read in earlier if read["candidate_digest"] != selection.candidate_digest]
    # What was read before questions had digests was this very test.
    seen = asked & {question for read in others for question in read.get("asked", asked)}
    picks = {read["candidate_digest"]: str(read["pick"]) for read in others}
    return TestReading(
        selection.pick, selection.candidate_digest, decision, len(asked), len(earlier), tuple(picks.values()), len(seen)
    )
