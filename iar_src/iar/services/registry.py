"""The provenance registry: what was made, from what, by which run. Append-only, addressed by content.

An entity is named by its digest, an edge leads from a product to one of its inputs, an activity is
the stage that made it. Recording the same again changes nothing; no statement here updates or
deletes. Events form a hash chain: a changed or missing event breaks every later one.
"""

import dataclasses
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Column, Connection, Engine, Table, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from iar.errors import PermanentError, UserError
from iar.methods.digest import canonical_json, digest_json
from iar.records import Lineage
from iar.services.database import create_tables, open_engine, open_to_read, parse_url, transaction
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, EVENTS, METADATA

BATCH = 2000
SHOWN_DIGITS = 12
RETRACT = "retract"  # the kind of event that takes its subject, and all that was made of it, out of use
PROMOTE, ROLLBACK = "promote", "rollback"  # the kinds that move an alias of a model; their subject is MODEL@ALIAS
MAX_CANDIDATES = 6


@dataclass(frozen=True)
class Producer:
    """The execution of a stage that made entries. `started` is Unix time; both times are in seconds."""

    run_id: str
    stage: str
    code_version: str
    config_digest: str
    seed: int
    started: float
    seconds: float

    @property
    def id(self) -> str:
        """Digest of everything but the times: the same work done again is the same activity."""
        values = dataclasses.asdict(self)
        return digest_json({name: values[name] for name in values if name not in ("started", "seconds")})


@dataclass(frozen=True, order=True)
class Edge:
    """`product` was made from `input`, which played `role`, by `activity`."""

    product: str
    role: str
    input: str
    activity: str


@dataclass(frozen=True)
class Event:
    """Something that happened to `subject`; `previous` is the digest of the event before it."""

    id: int
    kind: str
    subject: str
    payload: dict[str, Any]
    time: float
    previous: str
    digest: str


def short_id(kind: str, digest: str) -> str:
    """Return the identity shown to people, such as `checkpoint:3f9a01bc77de`."""
    return f"{kind}:{digest[:SHOWN_DIGITS]}"


class Registry:
    """An open registry. Any number of processes may write to one database at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The database behind it, to read from."""
        return self._engine

    @classmethod
    def open(cls, url: str) -> "Registry":
        """Open `sqlite:///file` or `postgresql://host/database`, creating the tables where they are missing.

        User and password of PostgreSQL come from PGUSER and PGPASSWORD. Raises UserError for a URL with a
        password and for a database that cannot be reached.
        """
        engine = open_engine(parse_url(url))
        create_tables(engine, METADATA)
        return cls(engine)

    @classmethod
    def open_to_read(cls, url: str) -> "Registry | None":
        """Open a registry to look something up, None where there is none; nothing is made. Raises as `open` does."""
        engine = open_to_read(parse_url(url), METADATA)
        return cls(engine) if engine else None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def record(self, entries: Iterable[Lineage], producer: Producer) -> None:
        """Record entries with their edges and the activity that made them, all or nothing; idempotent.

        The first description of a digest stays: the same content under another name adds edges only.
        Raises PermanentError when an entry is made from something never recorded.
        """
        entries = list(entries)
        if not entries:
            return
        activity = dataclasses.asdict(producer) | {"id": producer.id}
        # Writers that insert in one order cannot deadlock.
        entities = sorted((_entity_row(entry) for entry in entries), key=lambda row: row["digest"])
        edges = [
            {"product": product, "role": role, "input": source, "activity": producer.id}
            for product, role, source in sorted({(entry.digest, *pair) for entry in entries for pair in entry.inputs})
        ]
        try:
            with transaction(self._engine, writes=True) as connection:
                self._insert(connection, ACTIVITIES, [activity])
                self._insert(connection, ENTITIES, entities)
                self._insert(connection, EDGES, edges)
        except IntegrityError as error:
            raise PermanentError(self._dangling(edges, entities, producer)) from error

    def event(self, kind: str, subject: str, payload: dict[str, Any]) -> None:
        """Append an event about `subject` (a digest or a run) to the chain."""
        with self._appending() as connection:
            self._append(connection, kind, subject, payload)

    def event_after(self, last: str, kind: str, subject: str, payload: dict[str, Any]) -> bool:
        """Append an event if `last` is the digest of the subject's last one ("" = it has none); return whether it is.

        Of any number of writers that have seen the same last event, one succeeds.
        """
        newest = select(EVENTS.c.digest).where(EVENTS.c.subject == subject).order_by(EVENTS.c.id.desc()).limit(1)
        with self._appending() as connection:
            if (connection.execute(newest).scalar() or "") != last:
                return False
            self._append(connection, kind, subject, payload)
        return True

    @contextmanager
    def _appending(self) -> Iterator[Connection]:
        with transaction(self._engine, writes=True) as connection:
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql("LOCK TABLE events IN EXCLUSIVE MODE")
            yield connection

    def _append(self, connection: Connection, kind: str, subject: str, payload: dict[str, Any]) -> None:
        last = connection.execute(select(EVENTS.c.digest).order_by(EVENTS.c.id.desc()).limit(1)).scalar()
        row = {"kind": kind, "subject": subject, "payload": canonical_json(payload), "time": time.time()}
        row["previous"] = last or ""
        connection.execute(EVENTS.insert(), row | {"digest": digest_json(row)})

    def events(self, subject: str = "") -> list[Event]:
        """Return the events in order, of one subject or of all."""
        query = select(EVENTS).order_by(EVENTS.c.id)
        with transaction(self._engine, writes=False) as connection:
            rows = connection.execute(query.where(EVENTS.c.subject == subject) if subject else query).mappings().all()
        return [Event(**(dict(row) | {"payload": json.loads(row["payload"])})) for row in rows]

    def find(self, id_prefix: str) -> Lineage:
        """Return the entry that `id_prefix` names: `kind:digits`, `digits` or a whole digest.

        Raises UserError with the candidates when no entry or more than one fits.
        """
        kind, _, digits = id_prefix.strip().rpartition(":")
        with transaction(self._engine, writes=False) as connection:
            rows = _starting_with(connection, digits, kind)
            if len(rows) == 1 and digits:
                return self._load(connection, rows[0][0])
            near = rows or _nearest(connection, digits)
        names = ", ".join(
            short_id(kind, digest) + f" ({name})" * bool(name) for digest, kind, name in near[:MAX_CANDIDATES]
        )
        names += ", ..." if len(near) > MAX_CANDIDATES else ""
        if rows:
            raise UserError(f"lineage id {id_prefix!r} fits several entries: {names}; give more digits")
        raise UserError(f"lineage id {id_prefix!r}: no such entry; closest: {names or 'the registry is empty'}")

    def upstream(self, digest: str) -> list[Edge]:
        """Return every edge on a way from `digest` down to what it was made from, sorted; [] for a source."""
        return self._walk(digest, EDGES.c.product, EDGES.c.input)

    def downstream(self, digest: str) -> list[Edge]:
        """Return every edge on a way from `digest` up to what was made from it, sorted."""
        return self._walk(digest, EDGES.c.input, EDGES.c.product)

    def labels(self, digests: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return digest -> (kind, name) of the entries that exist."""
        found: dict[str, tuple[str, str]] = {}
        with transaction(self._engine, writes=False) as connection:
            for some in _batches(sorted(set(digests))):
                query = select(ENTITIES.c.digest, ENTITIES.c.kind, ENTITIES.c.name).where(ENTITIES.c.digest.in_(some))
                found |= {digest: (kind, name) for digest, kind, name in connection.execute(query)}
        return found

    def file_digests(self, digests: Iterable[str]) -> dict[str, str]:
        """Return SHA-256 of a source file -> digest of the document made from it, of the documents among `digests`."""
        found: dict[str, str] = {}
        columns = select(ENTITIES.c.digest, ENTITIES.c.payload).where(ENTITIES.c.kind == "document")
        with transaction(self._engine, writes=False) as connection:
            for some in _batches(sorted(set(digests))):
                for digest, payload in connection.execute(columns.where(ENTITIES.c.digest.in_(some))):
                    found[str(json.loads(payload).get("source_digest", digest))] = digest
        return found

    def documents_of_file(self, file_digest: str) -> list[str]:
        """Return the digests of the documents that were made from a file with this SHA-256, sorted."""
        query = select(ENTITIES.c.digest).where(ENTITIES.c.kind == "document", ENTITIES.c.payload.contains(file_digest))
        with transaction(self._engine, writes=False) as connection:
            return sorted(connection.execute(query).scalars())

    def verify(self) -> list[str]:
        """Return one line for each stored record or event that is not what its digest says; [] when intact."""
        problems, previous = [], ""
        with transaction(self._engine, writes=False) as connection:
            for row in connection.execute(select(ENTITIES)).mappings():
                if _record_digest(row["kind"], row["digest"], row["name"], row["payload"]) != row["record_digest"]:
                    problems.append(f"entity {short_id(row['kind'], row['digest'])}: changed after it was recorded")
            for event in connection.execute(select(EVENTS).order_by(EVENTS.c.id)).mappings():
                content = {name: event[name] for name in ("kind", "subject", "payload", "time", "previous")}
                if event["previous"] != previous or digest_json(content) != event["digest"]:
                    problems.append(f"event {event['id']}: the chain is broken here")
                previous = event["digest"]
        return problems

    def _walk(self, digest: str, near: Column[str], far: Column[str]) -> list[Edge]:
        reached = select(ENTITIES.c.digest).where(ENTITIES.c.digest == digest).cte("reached", recursive=True)
        reached = reached.union(select(far).join(reached, near == reached.c.digest))
        query = select(EDGES).join(reached, near == reached.c.digest)
        with transaction(self._engine, writes=False) as connection:
            return sorted(Edge(*row) for row in connection.execute(query))

    def _insert(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
        names = [column.name for column in table.columns]
        for some in _batches(rows):
            if self._engine.dialect.name == "sqlite":
                connection.execute(sqlite.insert(table).on_conflict_do_nothing(), some)
                continue
            # One array a column: a statement a row would make PostgreSQL three times slower.
            arrays = [literal([row[column.name] for row in some], ARRAY(column.type)) for column in table.columns]
            rows_sent = select(func.unnest(*arrays).table_valued(*names).render_derived())
            connection.execute(postgresql.insert(table).from_select(names, rows_sent).on_conflict_do_nothing())

    def _load(self, connection: Connection, digest: str) -> Lineage:
        row = connection.execute(select(ENTITIES).where(ENTITIES.c.digest == digest)).one()
        edges = select(EDGES.c.role, EDGES.c.input).where(EDGES.c.product == digest).distinct()
        inputs = tuple(sorted((role, source) for role, source in connection.execute(edges)))
        return Lineage(row.kind, row.digest, row.name, json.loads(row.payload), inputs)

    def _dangling(self, edges: list[dict[str, str]], entities: list[dict[str, Any]], producer: Producer) -> str:
        where = f"registry: {producer.run_id} {producer.stage}"
        known = {row["digest"] for row in entities} | set(self.labels(edge["input"] for edge in edges))
        for edge in edges:
            if edge["input"] not in known:
                return (
                    f"{where}: {edge['product'][:SHOWN_DIGITS]} has as {edge['role']} {edge['input']!r}, "
                    "which was never recorded; record inputs before what is made from them"
                )
        return f"{where}: the database refused the entries"


def _record_digest(kind: str, digest: str, name: str, payload: str) -> str:
    return digest_json({"kind": kind, "digest": digest, "name": name, "payload": payload})


def _entity_row(entry: Lineage) -> dict[str, Any]:
    payload = canonical_json(entry.payload)
    row = {"digest": entry.digest, "kind": entry.kind, "name": entry.name, "payload": payload}
    return row | {"record_digest": _record_digest(entry.kind, entry.digest, entry.name, payload)}


def _batches(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def _starting_with(connection: Connection, digits: str, kind: str = "") -> list[tuple[str, str, str]]:
    column = ENTITIES.c.digest
    query = select(column, ENTITIES.c.kind, ENTITIES.c.name).order_by(column).limit(MAX_CANDIDATES + 1)
    query = query.where(column >= digits, column < digits + "\uffff")
    return [tuple(row) for row in connection.execute(query.where(ENTITIES.c.kind == kind) if kind else query)]


def _nearest(connection: Connection, digits: str) -> list[tuple[str, str, str]]:
    """Return entries that share the longest beginning with `digits`, whatever their kind."""
    for length in range(len(re.sub(r"[^\w.-].*", "", digits)), -1, -1):
        if rows := _starting_with(connection, digits[:length]):
            return rows
    return []


def _names(rows: list[tuple[str, str, str]]) -> str:
    shown = [short_id(kind, digest) + f" ({name})" * bool(name) for digest, kind, name in rows[:MAX_CANDIDATES]]
    return ", ".join(shown + ["..."] * (len(rows) > MAX_CANDIDATES))
