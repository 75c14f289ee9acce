"""Writing to the registry: entries with their edges in one transaction, events at the end of a chain."""

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ARRAY, Connection, Engine, Table, func, literal, select, text
from sqlalchemy.dialects import postgresql

from iar.errors import PermanentError
from iar.methods.digest import canonical_json, digest_json
from iar.records import Lineage
from iar.services.database import transaction
from iar.services.registry_records import (
    SHOWN_DIGITS,
    Producer,
    activity_record,
    entity_record,
    inputs_digest,
    recording_content,
    sizes_of,
)
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, EVENTS, MAKINGS, RECORDINGS

BATCH = 2000
PART = 20_000
MANY = 1000
DIGEST = re.compile(r"[0-9a-f]{64}")
Row = dict[str, Any]
T = TypeVar("T")


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items, BATCH at a time."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def record(engine: Engine, entries: Iterable[Lineage], producer: Producer) -> None:
    """Record entries with their edges and the activity that made them; idempotent.

    All or nothing up to PART entries; more come in parts, between which others write. What a kill cut short, the same
    call completes. The first description of a digest stays. Raises PermanentError when an entry is made from something
    that is neither in its part nor on record.
    """
    waiting, written = iter(entries), 0
    while part := list(islice(waiting, PART)):
        _record(engine, part, producer)
        written += len(part)
    if written >= MANY and engine.dialect.name == "postgresql":
        # Its planner would take the tables for what they were until autovacuum comes by, and read them whole.
        with transaction(engine, writes=True) as connection:
            connection.execute(text("ANALYZE entities, makings, edges"))


def _record(engine: Engine, entries: Sequence[Lineage], producer: Producer) -> None:
    # Writers that insert in one order cannot deadlock.
    ordered = [entry for _, entry in sorted(_merged(entries).items())]
    _check(ordered, producer)
    with transaction(engine, writes=True) as connection:
        insert(connection, ACTIVITIES, [_activity_row(producer)])
        insert(connection, ENTITIES, [_entity_row(entry) for entry in ordered])
        wanted = {entry.digest for entry in ordered} | {digest for entry in ordered for _, digest in entry.inputs}
        number_of = numbers(connection, wanted)
        _refuse_dangling(ordered, number_of, producer)
        lock(connection, RECORDINGS)
        activity = _activity(connection, producer)
        _append_makings(connection, ordered, number_of, activity.id, activity.record_digest)


def record_activity(engine: Engine, producer: Producer) -> None:
    """Record an activity that made nothing, once: its recording is empty, and the chain holds it."""
    with transaction(engine, writes=True) as connection:
        insert(connection, ACTIVITIES, [_activity_row(producer)])
        lock(connection, RECORDINGS)
        activity = _activity(connection, producer)
        known = select(RECORDINGS.c.id).where(RECORDINGS.c.activity == activity.id).limit(1)
        if connection.execute(known).first() is None:
            _append_recording(connection, activity.id, activity.record_digest, [], {})


def _activity(connection: Connection, producer: Producer) -> Any:
    """Return number and record digest of an activity that is on record."""
    query = select(ACTIVITIES.c.id, ACTIVITIES.c.record_digest)
    return connection.execute(query.where(ACTIVITIES.c.digest == bytes.fromhex(producer.id))).one()


def numbers(connection: Connection, digests: Iterable[str]) -> dict[str, int]:
    """Return digest -> number of the entities that exist."""
    found: dict[str, int] = {}
    for some in batches([bytes.fromhex(digest) for digest in sorted(digests)]):
        query = select(ENTITIES.c.digest, ENTITIES.c.id).where(ENTITIES.c.digest.in_(some))
        found |= {digest.hex(): number for digest, number in connection.execute(query)}
    return found


def append_event(connection: Connection, kind: str, subject: str, payload: Row) -> None:
    """Append an event to the chain; the caller holds the lock."""
    last = connection.execute(select(EVENTS.c.digest).order_by(EVENTS.c.id.desc()).limit(1)).scalar()
    row = {"kind": kind, "subject": subject, "payload": canonical_json(payload), "time": time.time()}
    row["previous"] = last or ""
    connection.execute(EVENTS.insert(), row | {"digest": digest_json(row)})


@contextmanager
def appending(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that alone may append events until the block ends."""
    with transaction(engine, writes=True) as connection:
        lock(connection, EVENTS)
        yield connection


def lock(connection: Connection, table: Table) -> None:
    """Let nobody else append to a chain until the transaction ends; on SQLite a writer is alone anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE")


def insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, leaving those that are there as they are."""
    if not rows:
        return
    names = list(rows[0])
    for some in batches(rows):
        if connection.dialect.name == "sqlite":
            # By the driver itself: compiling and binding a row at a time would take twice as long.
            marks = ", ".join("?" * len(names))
            statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
            connection.exec_driver_sql(statement, [tuple(row.values()) for row in some])
            continue
        # One array a column: a statement a row would make PostgreSQL three times slower.
        arrays = [literal([row[name] for row in some], ARRAY(table.c[name].type)) for name in names]
        rows_sent = select(func.unnest(*arrays).table_valued(*names).render_derived())
        connection.execute(postgresql.insert(table).from_select(names, rows_sent).on_conflict_do_nothing())


def _append_makings(
    connection: Connection, entries: Sequence[Lineage], number_of: dict[str, int], activity: int, record_digest: bytes
) -> None:
    """Append a recording with the makings that the activity has not on record yet, and their edges."""
    inputs = {number_of[entry.digest]: inputs_digest(set(entry.inputs)) for entry in entries}
    known = _known_makings(connection, list(inputs), activity)
    new = {
        number: entry
        for entry in entries
        if (number := number_of[entry.digest], inputs[number_of[entry.digest]]) not in known
    }
    if not new:
        return
    recording = _append_recording(connection, activity, record_digest, list(new), inputs)
    first = (connection.execute(select(func.max(MAKINGS.c.id))).scalar() or 0) + 1
    makings, edges = [], []
    for making, (number, entry) in enumerate(new.items(), first):
        pairs = sorted((role, number_of[digest]) for role, digest in set(entry.inputs))
        sizes = sizes_of([role for role, _ in pairs])
        row = {"id": making, "entity": number, "recording": recording, "inputs": inputs[number], "sizes": sizes}
        makings.append(row)
        edges += [{"making": making, "role": role, "input": source} for role, source in pairs]
    insert(connection, MAKINGS, makings)
    insert(connection, EDGES, edges)


def _known_makings(connection: Connection, entities: Sequence[int], activity: int) -> set[tuple[int, bytes]]:
    known: set[tuple[int, bytes]] = set()
    made = select(MAKINGS.c.entity, MAKINGS.c.inputs).join(RECORDINGS).where(RECORDINGS.c.activity == activity)
    for some in batches(entities):
        known |= {(entity, inputs) for entity, inputs in connection.execute(made.where(MAKINGS.c.entity.in_(some)))}
    return known


def _append_recording(
    connection: Connection, activity: int, activity_digest: bytes, new: Sequence[int], inputs: dict[int, bytes]
) -> int:
    root = hashlib.sha256()
    records: dict[int, bytes] = {}
    for some in batches(new):
        query = select(ENTITIES.c.id, ENTITIES.c.record_digest).where(ENTITIES.c.id.in_(some))
        records |= {number: digest for number, digest in connection.execute(query)}
    for number in new:
        root.update(records[number] + inputs[number])
    last = connection.execute(
        select(RECORDINGS.c.id, RECORDINGS.c.digest).order_by(RECORDINGS.c.id.desc()).limit(1)
    ).first()
    now, previous = time.time(), last.digest if last else ""
    content = recording_content(activity_digest, len(new), root.hexdigest(), now, previous)
    row = content | {"id": last.id + 1 if last else 1, "activity": activity, "digest": digest_json(content)}
    connection.execute(RECORDINGS.insert(), row)
    return int(row["id"])


def _activity_row(producer: Producer) -> Row:
    row = {"digest": producer.id, "run_id": producer.run_id, "stage": producer.stage, "payload": producer.payload}
    return row | {"digest": bytes.fromhex(producer.id), "record_digest": activity_record(**row)}


def _entity_row(entry: Lineage) -> Row:
    payload = canonical_json(entry.payload)
    row = {"digest": bytes.fromhex(entry.digest), "kind": entry.kind, "name": entry.name, "payload": payload}
    return row | {"record_digest": entity_record(entry.kind, entry.digest, entry.name, payload)}


def _merged(entries: Iterable[Lineage]) -> dict[str, Lineage]:
    """Return the entries by digest; one that comes twice has the inputs of both."""
    merged: dict[str, Lineage] = {}
    for entry in entries:
        before = merged.get(entry.digest)
        merged[entry.digest] = replace(before, inputs=before.inputs + entry.inputs) if before else entry
    return merged


def _check(entries: Sequence[Lineage], producer: Producer) -> None:
    """Raise PermanentError for a digest that is none, and for a role that could be read as two."""
    for entry in entries:
        for role, digest in (("", entry.digest), *entry.inputs):
            if not DIGEST.fullmatch(digest) or ":" in role or "\n" in role:
                where = f"registry: {producer.run_id} {producer.stage}, {entry.kind} {entry.name!r}"
                raise PermanentError(f"{where}: {role + ' ' if role else ''}{digest!r}: not a SHA-256 in 64 digits")


def _refuse_dangling(entries: Sequence[Lineage], number_of: dict[str, int], producer: Producer) -> None:
    for entry in entries:
        for role, digest in entry.inputs:
            if digest not in number_of:
                raise PermanentError(
                    f"registry: {producer.run_id} {producer.stage}: {entry.digest[:SHOWN_DIGITS]} has as {role} "
                    f"{digest!r}, which was never recorded; record inputs before what is made from them"
                )
