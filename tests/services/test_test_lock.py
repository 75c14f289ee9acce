"""The locked test: no pick, no questions; every read leaves an event before the questions are seen."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import iar
from iar.errors import UserError
from iar.methods.contamination import PromptIndex, TrainingText
from iar.methods.digest import digest_file, digest_json
from iar.records import CrossDocumentPair, Lineage, QAPair, Selection, to_json, write_records
from iar.services.registry import Producer, Registry
from iar.services.test_lock import READ_TEST, open_locked_test, readings, sealed_test

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
    assert open_locked_test(data, selected, registry) == [PAIR]
    (event,) = registry.events()
    assert (event.kind, event.subject) == (READ_TEST, digest_file(data / "test.jsonl"))
    assert event.payload["pick"] == "ties-d0.3"
    assert event.payload["decision"] == digest_json(to_json(selected))
    assert (event.payload["earlier_reads"], event.payload["other_picks_before"]) == (0, [])


def test_a_second_read_for_another_pick_says_so(data: Path, registry: Registry) -> None:
    open_locked_test(data, record(registry, selection(data)), registry)
    open_locked_test(data, record(registry, selection(data, "slerp-t0.2")), registry)
    second = registry.events()[-1].payload
    assert (second["earlier_reads"], second["other_picks_before"]) == (1, ["ties-d0.3"])


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


def test_the_event_comes_before_the_questions(data: Path, registry: Registry) -> None:
    selected = record(registry, selection(data))
    (data / "test.jsonl").write_text("no record\n")
    with pytest.raises(Exception, match="not a QAPair"):
        open_locked_test(data, selected, registry)
    assert len(registry.events()) == 1


def test_nothing_else_in_the_package_names_the_test_file() -> None:
    package = Path(iar.__file__).parent
    naming = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"""["'/]test\.jsonl|test-cross|\{split\}\.jsonl""", path.read_text(encoding="utf-8"))
    }
    # Only qa_build, which writes all splits, may stand beside the lock.
    assert naming <= {"services/test_lock.py", "stages/qa_build.py"}


def test_training_data_is_checked_against_the_test_without_showing_it(data: Path, registry: Registry) -> None:
    item = TrainingText("t1", "who?", "It was Tora Lind.")
    (hit,) = PromptIndex([sealed_test(data)]).find(item)
    assert (hit.evaluation, hit.prompt_id, hit.prompt, hit.text) == ("test", PAIR.id, "", "who?")
    assert readings(data, registry) == []


def test_questions_over_two_documents_are_behind_the_same_lock(data: Path, registry: Registry) -> None:
    across = CrossDocumentPair(**(vars(PAIR) | {"id": "x1"}), other_document_id="e", other_chunk_id="e.0")
    write_records(data / "test-cross-document.jsonl", [across])
    assert open_locked_test(data, record(registry, selection(data)), registry) == [PAIR, across]
    assert len(registry.events()) == 1
