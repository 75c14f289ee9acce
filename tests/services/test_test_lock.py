"""The locked test: no pick, no questions; every read leaves an event before the questions are seen."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import iar
from iar.errors import TemporaryError, UserError
from iar.methods.contamination import PromptIndex, TrainingText
from iar.methods.digest import digest_file, digest_json
from iar.records import CrossDocumentPair, Lineage, QAPair, Selection, to_json, write_records
from iar.services.registry import Producer, Registry
from iar.services.test_lock import READ_TEST, open_locked_test, reading_of, sealed_test

PAIR = QAPair("q1", "d", "c", "test", "fact", "Who?", "Tora Lind", "", (), "Tora", "offline")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_records(tmp_path / "data" / "test.jsonl", [PAIR])
    write_records(tmp_path / "data" / "validation.jsonl", [replace(PAIR, id="v1", split="validation")])
    return tmp_path / "data"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")


def selection(data: Path, pick: str = "ties-d0.3") -> Selection:
    return Selection(pick, "rule", 1.0, (), digest_file(data / "validation.jsonl"), f"weights of {pick}")


def record(registry: Registry, selected: Selection) -> Selection:
    payload = to_json(selected)
    entry = Lineage("decision", digest_json(payload), "pick", payload)
    registry.record([entry], Producer("run", "selector", "code", "config", 17, 0.0, 1.0))
    return selected


def test_a_recorded_pick_opens_the_test_and_leaves_an_event(data: Path, registry: Registry) -> None:
    selected = record(registry, selection(data))
    pairs, reading = open_locked_test(data, selected, registry)
    assert pairs == [PAIR] and reading.mark == ""
    (event,) = registry.events()
    assert (event.kind, event.subject) == (READ_TEST, digest_file(data / "test.jsonl"))
    assert event.payload["pick"] == "ties-d0.3"
    assert event.payload["decision"] == digest_json(to_json(selected))
    assert (event.payload["earlier_reads"], event.payload["other_picks"], event.payload["questions"]) == (0, [], 1)
    assert reading_of(digest_json(to_json(selected)), registry) == reading


def test_a_second_read_for_another_pick_says_so(data: Path, registry: Registry) -> None:
    open_locked_test(data, record(registry, selection(data)), registry)
    open_locked_test(data, record(registry, selection(data, "slerp-t0.2")), registry)
    second = registry.events()[-1].payload
    assert (second["earlier_reads"], second["other_picks"], second["seen_before"]) == (1, ["ties-d0.3"], 1)


def test_a_read_repeated_for_the_same_weights_is_counted_and_no_second_look(data: Path, registry: Registry) -> None:
    selected = record(registry, selection(data))
    open_locked_test(data, selected, registry)
    _, again = open_locked_test(data, selected, registry)
    assert (again.earlier_reads, again.other_picks, again.mark) == (1, (), "")
    first = reading_of(digest_json(to_json(selected)), registry)
    assert first is not None and first.earlier_reads == 0


def test_another_model_under_the_same_name_is_another_model(data: Path, registry: Registry) -> None:
    open_locked_test(data, record(registry, selection(data)), registry)
    retrained = replace(selection(data), candidate_digest="other weights")
    _, reading = open_locked_test(data, record(registry, retrained), registry)
    assert reading.mark == "1 of 1 questions taken before by 1 other model (ties-d0.3)"


def test_a_test_that_shares_questions_is_known_by_them(data: Path, registry: Registry) -> None:
    open_locked_test(data, record(registry, selection(data)), registry)
    # One document more: another file, in which the old question has a new id and a new one stands beside it.
    pairs = [replace(PAIR, id="q9", question="who?"), replace(PAIR, id="q2", question="Why?")]
    write_records(data / "test.jsonl", pairs)
    _, reading = open_locked_test(data, record(registry, selection(data, "slerp-t0.2")), registry)
    assert reading.mark == "1 of 2 questions taken before by 1 other model (ties-d0.3)"
    write_records(data / "test.jsonl", [replace(PAIR, question="Where?")])
    _, reading = open_locked_test(data, record(registry, selection(data, "dare-p0.1")), registry)
    assert (reading.earlier_reads, reading.mark) == (0, "")


def test_something_else_that_is_recorded_is_no_selection(data: Path, registry: Registry) -> None:
    payload = to_json(selection(data))
    entry = Lineage("scores", digest_json(payload), "not decided", payload)
    registry.record([entry], Producer("run", "selector", "code", "config", 17, 0.0, 1.0))
    with pytest.raises(UserError, match=r"the selection of ties-d0\.3 is not in the registry"):
        open_locked_test(data, selection(data), registry)


def test_without_a_pick_the_test_stays_locked(data: Path, registry: Registry) -> None:
    with pytest.raises(UserError, match="the test stays locked: the selection has no pick"):
        open_locked_test(data, record(registry, selection(data, "")), registry)
    assert registry.events() == []


def test_an_unrecorded_selection_opens_nothing(data: Path, registry: Registry) -> None:
    with pytest.raises(UserError, match=r"the selection of ties-d0\.3 is not in the registry; run the selector first"):
        open_locked_test(data, selection(data), registry)
    assert registry.events() == []


def test_a_selection_on_other_questions_opens_nothing(data: Path, registry: Registry) -> None:
    selected = record(registry, selection(data))
    write_records(data / "validation.jsonl", [PAIR])
    with pytest.raises(UserError, match=r"holds other questions than those ties-d0\.3 was picked on; run the selector"):
        open_locked_test(data, selected, registry)
    assert registry.events() == []


def test_no_event_no_questions(data: Path, tmp_path: Path) -> None:
    class Full(Registry):
        def event(self, kind: str, subject: str, payload: dict[str, object]) -> None:
            raise TemporaryError("disk full")

    registry = Full.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    with pytest.raises(TemporaryError, match="disk full"):
        open_locked_test(data, record(registry, selection(data)), registry)


def test_nothing_else_in_the_package_names_the_test_file() -> None:
    package = Path(iar.__file__).parent
    naming = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"""["'/]test\.jsonl|test-cross|\{split\}\.jsonl""", path.read_text(encoding="utf-8"))
    }
    # Beside the lock stand qa_build, which writes all splits, and descriptions of a dataset, which open no file.
    describing = {"report/hub_cards.py", "methods/export_croissant.py"}
    assert naming <= {"services/test_lock.py", "services/qa_dataset.py"} | describing
    for name in describing:
        assert not re.search(r"read_|open\(|\.copy", (package / name).read_text(encoding="utf-8")), name


def test_training_data_is_checked_against_the_test_without_showing_it(data: Path, registry: Registry) -> None:
    item = TrainingText("t1", "who?", "It was Tora Lind.")
    (hit,) = PromptIndex([sealed_test(data)]).find(item)
    assert (hit.evaluation, hit.prompt_id, hit.prompt, hit.text) == ("test", PAIR.id, "", "")
    assert registry.events() == []


def test_questions_over_two_documents_are_behind_the_same_lock(data: Path, registry: Registry) -> None:
    across = CrossDocumentPair(**(vars(PAIR) | {"id": "x1"}), other_document_id="e", other_chunk_id="e.0")
    write_records(data / "test-cross-document.jsonl", [across])
    assert open_locked_test(data, record(registry, selection(data)), registry)[0] == [PAIR, across]
    assert len(registry.events()) == 1
