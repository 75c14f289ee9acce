"""Whether the registry is as it was written: every row against its digest, every digest against the chain above it."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Engine, Select, select

from iar.methods.digest import digest_json
from iar.services.database import transaction
from iar.services.registry_records import (
    activity_record,
    entity_record,
    inputs_digest,
    recording_content,
    short_id,
    sizes_of,
)
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, EVENTS, MAKINGS, RECORDINGS
from iar.services.registry_walk import upwards

ROWS = 5000
CHAINS = {"recording": RECORDINGS, "event": EVENTS}


def head(engine: Engine) -> str:
    """Return number and digest of the last recording and the last event: `recording:12:<digest> event:3:<digest>`."""
    ends = []
    with transaction(engine, writes=False) as connection:
        for name, table in CHAINS.items():
            row = connection.execute(select(table.c.id, table.c.digest).order_by(table.c.id.desc()).limit(1)).first()
            ends += [f"{name}:{row.id}:{row.digest}"] if row else []
    return " ".join(ends)


def origin(engine: Engine) -> str:
    """Return the digest of the first recording, "" where there is none."""
    first = select(RECORDINGS.c.digest).order_by(RECORDINGS.c.id).limit(1)
    with transaction(engine, writes=False) as connection:
        return str(connection.execute(first).scalar() or "")


def lacking(engine: Engine, heads: Iterable[str]) -> list[str]:
    """Return one line for each head that is not in its chain."""
    with transaction(engine, writes=False) as connection:
        return list(_heads(connection, heads))


def verify(engine: Engine, heads: Iterable[str] = ()) -> list[str]:
    """Return one line for each row that is not what its digest says, and for each head that is not in its chain."""
    with transaction(engine, writes=False) as connection:
        return [
            *_entities(connection),
            *_activities(connection),
            *_makings(connection),
            *_recordings(connection),
            *_events(connection),
            *_heads(connection, heads),
        ]


def verify_entry(engine: Engine, digest: str) -> list[str]:
    """Return one line for each row of an entry, and of all that it was made from, that is not what its digest says."""
    with transaction(engine, writes=False) as connection:
        found = upwards(connection, [digest])
        return [*_entities(connection, found), *_makings(connection, found)]


def _rows(connection: Connection, query: Any) -> Iterator[Any]:
    return iter(connection.execution_options(stream_results=True, yield_per=ROWS).execute(query))


def _entities(connection: Connection, among: Select[Any] | None = None) -> Iterator[str]:
    erased = set(connection.execute(select(EVENTS.c.subject).where(EVENTS.c.kind == "erase")).scalars())
    query = select(ENTITIES).order_by(ENTITIES.c.id)
    for row in _rows(connection, query if among is None else query.where(ENTITIES.c.id.in_(among))):
        digest = row.digest.hex()
        if not row.payload and not row.name and digest in erased:
            continue
        if entity_record(row.kind, digest, row.name, row.payload) != row.record_digest:
            yield f"entity {short_id(row.kind, digest)}: changed after it was recorded"


def _activities(connection: Connection) -> Iterator[str]:
    for row in _rows(connection, select(ACTIVITIES).order_by(ACTIVITIES.c.id)):
        if activity_record(row.digest.hex(), row.run_id, row.stage, row.payload) != row.record_digest:
            yield f"activity {row.digest.hex()[:12]} ({row.stage} of {row.run_id}): changed after it was recorded"


def _makings(connection: Connection, among: Select[Any] | None = None) -> Iterator[str]:
    """Yield the makings whose edges are not those that they were recorded with."""
    query = (
        select(MAKINGS.c.id, MAKINGS.c.inputs, MAKINGS.c.sizes, EDGES.c.role, ENTITIES.c.digest)
        .join_from(MAKINGS, EDGES, EDGES.c.making == MAKINGS.c.id, isouter=True)
        .join(ENTITIES, ENTITIES.c.id == EDGES.c.input, isouter=True)
        .order_by(MAKINGS.c.id)
    )
    query = query if among is None else query.where(MAKINGS.c.entity.in_(among))
    wrong = []
    for number, rows in itertools.groupby(_rows(connection, query), key=lambda row: row.id):
        group = list(rows)
        inputs = [(row.role, row.digest.hex() if row.digest else "") for row in group if row.role is not None]
        if inputs_digest(inputs) != group[0].inputs or sizes_of([role for role, _ in inputs]) != group[0].sizes:
            wrong.append((number, len(inputs)))
    for number, count in wrong:
        made = select(ENTITIES.c.kind, ENTITIES.c.digest).join(MAKINGS).where(MAKINGS.c.id == number)
        row = connection.execute(made).first()
        shown = short_id(row.kind, row.digest.hex()) if row else f"making {number}"
        yield f"edges of {shown}: not those it was recorded with ({count} are there)"


def _recordings(connection: Connection) -> Iterator[str]:
    """Yield where the chain of recordings breaks, and the recordings whose makings are not all there, as they were."""
    roots: dict[int, tuple[int, str]] = {}
    made = select(MAKINGS.c.recording, MAKINGS.c.inputs, ENTITIES.c.record_digest).order_by(MAKINGS.c.id)
    made = made.join_from(MAKINGS, ENTITIES, ENTITIES.c.id == MAKINGS.c.entity, isouter=True)
    for number, rows in itertools.groupby(_rows(connection, made), key=lambda row: row.recording):
        root, count = hashlib.sha256(), 0
        for row in rows:
            root.update((row.record_digest or b"") + row.inputs)
            count += 1
        roots[number] = (count, root.hexdigest())
    query = select(RECORDINGS, ACTIVITIES.c.record_digest, ACTIVITIES.c.run_id, ACTIVITIES.c.stage)
    query = query.join_from(RECORDINGS, ACTIVITIES, isouter=True).order_by(RECORDINGS.c.id)
    previous, next_number = "", 1
    for row in _rows(connection, query):
        content = recording_content(row.record_digest or b"", row.makings, row.root, row.time, row.previous)
        where = f"recording {row.id} ({row.stage} of {row.run_id})"
        if row.id != next_number or row.previous != previous or digest_json(content) != row.digest:
            yield f"{where}: the chain is broken here"
        count, found = roots.pop(row.id, (0, hashlib.sha256().hexdigest()))
        if count != row.makings:
            yield f"{where}: {count} of its {row.makings} entries are there"
        elif found != row.root:
            yield f"{where}: its entries are not those that were recorded, or not in that order"
        previous, next_number = row.digest, row.id + 1
    yield from (f"recording {number}: its entries are there, it is not" for number in roots)


def _events(connection: Connection) -> Iterator[str]:
    previous = ""
    for event in _rows(connection, select(EVENTS).order_by(EVENTS.c.id)):
        content = {name: getattr(event, name) for name in ("kind", "subject", "payload", "time", "previous")}
        if event.previous != previous or digest_json(content) != event.digest:
            yield f"event {event.id}: the chain is broken here"
        previous = event.digest


def _heads(connection: Connection, heads: Iterable[str]) -> Iterator[str]:
    for end in sorted({end for one in heads for end in one.split()}):
        name, number, digest = (*end.split(":"), "", "")[:3]
        table = CHAINS.get(name)
        if table is None or not number.isdecimal():
            yield f"head {end!r}: not a head of a registry"
            continue
        found = connection.execute(select(table.c.digest).where(table.c.id == int(number))).scalar()
        if found != digest:
            yield (
                f"{name} {number}: once ended with {digest[:12]}, here it is {found[:12] if found else 'missing'}: "
                "this is an older copy, or its history was rewritten"
            )
