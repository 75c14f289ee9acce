"""What `verify` must name, on every database; and writers that are killed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine

from iar.records import Lineage
from iar.services.database import parse_url
from iar.services.registry import Producer, Registry
from tests.services.registry_cases import PRODUCER, a_run, entry

KILLED_WRITERS = 16
ENTRIES = 30

Tampered = tuple[Registry, Callable[..., None], dict[str, Lineage]]


@pytest.fixture
def tampered(registry_url: str) -> Tampered:
    """A registry with three recordings and two events, and a way to change it behind its back."""
    registry = Registry.open(registry_url)
    entries = a_run()
    registry.record([one for one in entries.values() if one.kind != "checkpoint"], PRODUCER)
    registry.record([entries["base"]], Producer(**(vars(PRODUCER) | {"stage": "base-model"})))
    registry.record([entries["tuned"]], Producer(**(vars(PRODUCER) | {"stage": "inject"})))
    registry.event("retract", "f" * 64, {"reason": "asked to"})
    registry.event("promote", "m@champion", {"version": "1"})
    assert registry.verify([registry.head()]) == []
    # Not as the registry opens it: SQLite checks no reference unless asked to.
    engine = create_engine(parse_url(registry_url))

    def change(*statements: str) -> None:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SET session_replication_role = replica")
            for statement in statements:
                connection.exec_driver_sql(statement)

    return registry, change, entries


OF = "(SELECT id FROM entities WHERE name = '{}')"
MAKING_OF = f"(SELECT id FROM makings WHERE entity = {OF})"


def test_a_changed_name_is_named(tampered: Tampered) -> None:
    registry, change, entries = tampered
    change("UPDATE entities SET name = 'q0' WHERE name = 'q1.0'")
    line = f"entity qa-pair:{entries['q1.0'].digest[:12]}: changed after it was recorded"
    assert registry.verify() == registry.verify_entry(entries["tuned"].digest) == [line]
    assert registry.verify_entry(entries["q1.1"].digest) == []


def test_a_changed_activity_is_named(tampered: Tampered) -> None:
    registry, change, _ = tampered
    change("UPDATE activities SET payload = replace(payload, '\"seed\":17', '\"seed\":18') WHERE stage = 'inject'")
    (line,) = registry.verify()
    assert line.startswith("activity ") and line.endswith(" (inject of demo-0123456789): changed after it was recorded")


@pytest.mark.parametrize(
    "statement",
    [
        f"DELETE FROM edges WHERE making = {MAKING_OF.format('tuned')} AND role = 'start'",
        f"UPDATE edges SET role = 'data' WHERE making = {MAKING_OF.format('tuned')} AND role = 'start'",
        f"UPDATE edges SET input = {OF.format('d1')} WHERE making = {MAKING_OF.format('tuned')} AND role = 'start'",
        f"INSERT INTO edges (making, role, input) VALUES ({MAKING_OF.format('tuned')}, 'start', {OF.format('d1')})",
    ],
    ids=["dropped", "of another role", "led elsewhere", "added"],
)
def test_an_edge_that_was_tampered_with_is_named_by_its_product(tampered: Tampered, statement: str) -> None:
    registry, change, entries = tampered
    change(statement)
    (line,) = registry.verify()
    assert line.startswith(f"edges of checkpoint:{entries['tuned'].digest[:12]}: not those it was recorded with")
    assert registry.verify_entry(entries["tuned"].digest) == [line]
    assert registry.verify_entry(entries["base"].digest) == registry.verify_entry(entries["d1"].digest) == []


def test_an_edge_that_was_dropped_with_its_digest_mended_shows_in_the_recording(tampered: Tampered) -> None:
    registry, change, _ = tampered
    making = f"(SELECT id FROM makings WHERE entity = {OF.format('base')})"
    change(
        f"DELETE FROM edges WHERE making = {MAKING_OF.format('tuned')}",
        f"UPDATE makings SET inputs = (SELECT inputs FROM makings WHERE id = {making}) "
        f"WHERE id = {MAKING_OF.format('tuned')}",
    )
    assert registry.verify() == [
        "recording 3 (inject of demo-0123456789): its entries are not those that were recorded, or not in that order"
    ]


def test_an_entry_that_was_deleted_with_all_its_traces_shows_in_the_recording(tampered: Tampered) -> None:
    registry, change, _ = tampered
    change(
        f"DELETE FROM edges WHERE making = {MAKING_OF.format('tuned')}",
        f"DELETE FROM makings WHERE entity = {OF.format('tuned')}",
        "DELETE FROM entities WHERE name = 'tuned'",
    )
    assert registry.verify() == ["recording 3 (inject of demo-0123456789): 0 of its 1 entries are there"]


def test_two_entries_that_changed_places_show_in_the_recording(tampered: Tampered) -> None:
    registry, change, _ = tampered
    change(
        "UPDATE edges SET making = making + 1000",
        "UPDATE makings SET id = id + 1000",
        "UPDATE makings SET id = CASE id WHEN 1001 THEN 1002 WHEN 1002 THEN 1 + 1000 ELSE id END WHERE id > 1002",
    )
    assert registry.verify() == []
    first, second = "(SELECT min(id) FROM makings)", "(SELECT min(id) + 1 FROM makings)"
    change(
        f"UPDATE edges SET making = -1 WHERE making = {first}",
        f"UPDATE edges SET making = {first} WHERE making = {second}",
        f"UPDATE edges SET making = {second} WHERE making = -1",
        f"UPDATE makings SET id = -1 WHERE id = {second}",
        "UPDATE makings SET id = 1002 WHERE id = 1001",
        "UPDATE makings SET id = 1001 WHERE id = -1",
    )
    assert registry.verify() == [
        "recording 1 (qa-build of demo-0123456789): its entries are not those that were recorded, or not in that order"
    ]


@pytest.mark.parametrize("table", ["recordings", "events"])
def test_a_missing_link_of_a_chain_is_named(tampered: Tampered, table: str) -> None:
    registry, change, _ = tampered
    change(f"DELETE FROM {table} WHERE id = 1")
    assert any(
        line.startswith(f"{table[:-1]} 2") and line.endswith("the chain is broken here") for line in registry.verify()
    )


def test_events_that_changed_places_are_named(tampered: Tampered) -> None:
    registry, change, _ = tampered
    change(
        "UPDATE events SET id = 3 WHERE id = 1", "UPDATE events SET id = 1 WHERE id = 2",
        "UPDATE events SET id = 2 WHERE id = 3",
    )  # fmt: skip
    assert registry.verify() == ["event 1: the chain is broken here", "event 2: the chain is broken here"]


def test_an_older_copy_of_the_database_lacks_a_head_that_was_seen(tampered: Tampered) -> None:
    registry, change, _ = tampered
    seen = registry.head()
    # The last event and the last recording never happened: intact, but older.
    change(
        "DELETE FROM events WHERE id = 2",
        f"DELETE FROM edges WHERE making = {MAKING_OF.format('tuned')}",
        f"DELETE FROM makings WHERE entity = {OF.format('tuned')}",
        "DELETE FROM entities WHERE name = 'tuned'",
        "DELETE FROM recordings WHERE id = 3",
    )

    assert registry.verify() == []
    lines = registry.verify([seen, "junk"])
    assert [line.partition(":")[0] for line in lines] == ["event 2", "head 'junk'", "recording 3"]
    assert lines[0].endswith("here it is missing: this is an older copy, or its history was rewritten")
    # What happens in the copy afterwards takes the number, not the digest.
    registry.event("other", "x", {})
    assert "event 2: once ended with" in registry.verify([seen])[0]


def write_until_killed(url: str, writer: int) -> None:
    registry = Registry.open(url)
    for call in range(10_000):
        document = entry("document", f"{writer}/{call}")
        pairs = [entry("qa-pair", f"{writer}/{call}/{n}", ("from", document.digest)) for n in range(ENTRIES)]
        members = tuple(("contains", one.digest) for one in pairs)
        data = entry("dataset", f"{writer}/{call}", *members)
        registry.record([document, *pairs, data], Producer(**(vars(PRODUCER) | {"run_id": f"run-{writer}"})))
        registry.event("recorded", data.digest, {"call": call})


def test_sixteen_writers_that_are_killed_leave_no_torn_record_and_lose_no_edge(registry_url: str) -> None:
    registry = Registry.open(registry_url)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_until_killed, args=(registry_url, n)) for n in range(KILLED_WRITERS)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 120
    while len(registry.events()) < 3 * KILLED_WRITERS and time.monotonic() < end:
        time.sleep(0.2)
    for writer in writers:
        os.kill(int(writer.pid or 0), signal.SIGKILL)
        time.sleep(0.02)
    for writer in writers:
        writer.join(60)

    assert [writer.exitcode for writer in writers] == [-signal.SIGKILL] * KILLED_WRITERS
    reopened = Registry.open(registry_url)
    reported = [event.subject for event in reopened.events()]
    assert len(reported) >= 3 * KILLED_WRITERS
    assert reopened.verify() == []
    whole = reopened.of_kind("dataset")
    assert {one.digest for one in whole} >= set(reported)
    for one in whole:
        assert len(reopened.upstream(one.digest)) == 2 * ENTRIES
    # Nobody holds a lock any more.
    reopened.record([entry("document", "after")], PRODUCER)
    reopened.event("after", "x", {})
