"""Retraction: by id or by the SHA-256 of a file, for good, and whatever the file is called."""

import json
from pathlib import Path

import pytest

from iar import cli
from iar.errors import UserError
from iar.records import Lineage
from iar.services.lineage_activities import activities
from iar.services.registry import Producer, Registry
from iar.services.retraction import made_from, restore, retract, retractions

FILE = "f" * 64
DOCUMENT = Lineage("document", "d" * 64, "velm.md", {"source_digest": FILE})
MODEL = Lineage("checkpoint", "c" * 64, "theta_I", {}, (("trained-on", DOCUMENT.digest),))
PRODUCER = Producer("r", "s", "1", "c", 17, 0.0, 1.0)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    registry.record([DOCUMENT, MODEL], PRODUCER)
    return registry


@pytest.mark.parametrize("id_", ["document:dddd", "dd", FILE])
def test_a_document_is_retracted_by_the_digest_of_its_file(registry: Registry, id_: str) -> None:
    made, new = retract(registry, id_, "asked  to\nby its author")

    assert (new, made.subject, made.name, made.reason) == (True, FILE, "velm.md", "asked to by its author")
    assert made_from(registry, made.subject) == {"checkpoint": 1}


def test_the_same_file_under_another_name_is_retracted_too(registry: Registry) -> None:
    retract(registry, "document:dddd", "asked to")
    again = Lineage("document", "e" * 64, "copy.md", {"source_digest": FILE})
    registry.record([again], PRODUCER)

    assert retract(registry, "document:eeee", "once more")[1] is False
    assert [one.subject for one in retractions(registry)] == [FILE]
    assert registry.file_digests([again.digest, MODEL.digest]) == {FILE: again.digest}


def test_a_file_that_no_run_has_seen_is_retracted_before_it_comes(registry: Registry) -> None:
    made, new = retract(registry, "a" * 64, "withdrawn")

    assert new and (made.subject, made.id) == ("a" * 64, "file:aaaaaaaaaaaa")
    assert made_from(registry, made.subject) == {}


def test_a_retraction_is_an_activity_with_the_person_who_decided(registry: Registry) -> None:
    retract(registry, "document:dddd", "asked to", "Ada Byron")
    retract(registry, "a" * 64, "withdrawn")

    with_person, without = activities(registry, kind="retract")
    assert {role: registry.find(digest).name for role, digest in with_person.used} == {
        "retracted": "velm.md", "decided-by": "Ada Byron"
    }  # fmt: skip
    assert with_person.config["reason"] == "asked to" and with_person.config["subject"] == FILE
    assert without.used == () and without.config["subject"] == "a" * 64
    assert all(one.environment and one.hardware and one.code_version for one in (with_person, without))
    assert registry.events()[0].payload["by"] == "Ada Byron" and registry.verify() == []


def test_what_was_decided_twice_is_two_activities(registry: Registry) -> None:
    for _ in range(2):
        retract(registry, "document:dddd", "asked to")
        restore(registry, "document:dddd", "agreed", "Ada Byron")

    assert [one.kind for one in activities(registry)] == ["", "retract", "restore", "retract", "restore"]


def test_another_entry_is_retracted_by_its_own_digest(registry: Registry) -> None:
    assert retract(registry, "checkpoint:c", "wrong data")[0].subject == MODEL.digest


@pytest.mark.parametrize(
    ("id_", "reason", "line"),
    [
        ("dddd", "  ", "--reason '': says nothing; write why, it stays with the retraction"),
        ("dddd", "a\x1b[2J", "--reason 'a\\x1b[2J': says nothing"),
        ("9999", "x", "lineage id '9999': no such entry; closest:"),
    ],
)
def test_what_cannot_be_retracted_is_one_line_and_changes_nothing(
    registry: Registry, id_: str, reason: str, line: str
) -> None:
    with pytest.raises(UserError) as refused:
        retract(registry, id_, reason)

    assert str(refused.value).startswith(line) and retractions(registry) == []


def test_lineage_marks_what_is_retracted_and_does_not_fold_it_away(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [Lineage("document", f"{n:064x}", f"{n}.md", {"source_digest": f"{n + 100:064x}"}) for n in range(1, 30)]
    inputs = tuple(("trained-on", one.digest) for one in [DOCUMENT, *others])
    registry.record([*others, Lineage("checkpoint", "b" * 64, "theta_IA", {}, inputs)], PRODUCER)
    retract(registry, "document:dddd", "asked to")

    assert cli.call(["lineage", "upstream", "checkpoint:b", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "checkpoint:bbbbbbbbbbbb  theta_IA",
        "  trained-on: document:dddddddddddd  velm.md  [retracted: asked to]",
        "  trained-on: document: 29 entries",
    ]
    assert cli.call(["lineage", "downstream", "document:dddd", "--state", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["id"][:10], row["retracted"]) for row in rows[:1]] == [("document:d", "asked to")]


def test_the_command_says_what_was_made_from_it(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["lineage", "retract", "document:dd", "--reason", "asked to", "--state", str(tmp_path)]

    assert cli.call(arguments) == 0
    assert capsys.readouterr().out == (
        "Retracted document:dddddddddddd (velm.md)\nMade from it: 1 checkpoint\n"
        "No longer stand: checkpoint:cccccccccccc (theta_I)\n"
    )
    assert cli.call(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("(velm.md) was retracted before: asked to")
    assert cli.call([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made_from_it"] == {"checkpoint": 1}
    assert cli.call(arguments[:3]) == 2
    assert "Missing option '--reason'" in capsys.readouterr().err
    assert registry.verify() == [] and len(registry.events()) == 1
