"""The provenance registry: what was made, from what, by which run. Append-only, addressed by content.

An entity is named by its digest, an edge leads from a product to one of its inputs, an activity is
the stage that made it. Recording the same again changes nothing; no statement but an erasure updates, none deletes.
Recordings and events form hash chains: what is changed or missing breaks every later one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Engine, select

from iar.errors import UserError
from iar.records import Lineage
from iar.services import registry_verify, registry_walk, registry_write
from iar.services.database import create_tables, open_engine, open_to_read, parse_url, transaction
from iar.services.registry_records import SHOWN_DIGITS, Edge, Event, Producer, short_id
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, EVENTS, MAKINGS, RECORDINGS
from iar.services.registry_write import DIGEST, batches

__all__ = ["SHOWN_DIGITS", "Edge", "Event", "Producer", "Registry", "short_id"]

RETRACT = "retract"  # the kind of event that takes its subject, and all that was made of it, out of use
RESTORE = "restore"  # the kind that takes a retraction back
ERASE = "erase"  # the kind that says that the payload of its subject was removed
PROMOTE, ROLLBACK = "promote", "rollback"  # the kinds that move an alias of a model; their subject is MODEL@ALIAS
MAX_CANDIDATES = 6
HEX = re.compile(r"[0-9a-f]*")


class Registry:
    """An open registry. Any number of processes may write to one database at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The database, for the modules `registry_*` and those that ask it questions."""
        return self._engine

    @classmethod
    def open(cls, url: str) -> "Registry":
        """Open `sqlite:///file` or `postgresql://host/database`, made where it is missing, brought up to date if older.

        User and password of PostgreSQL come from PGUSER and PGPASSWORD. Raises UserError for a URL with a
        password, for a database that cannot be reached, and for one that a later version made.
        """
        engine = open_engine(parse_url(url))
        create_tables(engine)
        return cls(engine)

    @classmethod
    def open_to_read(cls, url: str) -> "Registry | None":
        """Open a registry to look something up, None where there is none; nothing is made. Raises as `open` does.

        One that an earlier version made is brought up to date; where it may not be written, that is a UserError.
        """
        engine = open_to_read(parse_url(url))
        return cls(engine) if engine else None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def record(self, entries: Iterable[Lineage], producer: Producer) -> None:
        """Record entries with their edges and the activity that made them; idempotent.

        All or nothing up to 20,000 entries; more come in parts, inputs before what is made from them. The first
        description of a digest stays: the same content under another name adds edges only. Raises PermanentError
        when an entry is made from something never recorded.
        """
        registry_write.record(self._engine, entries, producer)

    def activity(self, producer: Producer) -> None:
        """Record an activity that made nothing, once: a try that failed or was killed."""
        registry_write.record_activity(self._engine, producer)

    def event(self, kind: str, subject: str, payload: dict[str, Any]) -> None:
        """Append an event about `subject` (a digest or a run) to the chain."""
        with registry_write.appending(self._engine) as connection:
            registry_write.append_event(connection, kind, subject, payload)

    def event_after(self, last: str, kind: str, subject: str, payload: dict[str, Any]) -> bool:
        """Append an event if `last` is the digest of the subject's last one ("" = it has none); return whether it is.

        Of any number of writers that have seen the same last event, one succeeds.
        """
        newest = select(EVENTS.c.digest).where(EVENTS.c.subject == subject).order_by(EVENTS.c.id.desc()).limit(1)
        with registry_write.appending(self._engine) as connection:
            if (connection.execute(newest).scalar() or "") != last:
                return False
            registry_write.append_event(connection, kind, subject, payload)
        return True

    def erase(self, digests: Iterable[str], payload: dict[str, Any]) -> int:
        """Remove names and payloads for good, with an event of kind ERASE for each; return how many had any."""
        erased = 0
        with registry_write.appending(self._engine) as connection:
            for digest in sorted(set(digests)):
                row = ENTITIES.c.digest == bytes.fromhex(digest)
                update = ENTITIES.update().where(row, ENTITIES.c.payload != "").values(name="", payload="")
                if connection.execute(update).rowcount:
                    registry_write.append_event(connection, ERASE, digest, payload)
                    erased += 1
        return erased

    def events(self, subject: str = "", kinds: Iterable[str] = ()) -> list[Event]:
        """Return the events in order, of one subject or of all, of some kinds or of all."""
        query = select(EVENTS).order_by(EVENTS.c.id)
        query = query.where(EVENTS.c.subject == subject) if subject else query
        query = query.where(EVENTS.c.kind.in_(list(kinds))) if kinds else query
        with transaction(self._engine, writes=False) as connection:
            rows = connection.execute(query).mappings().all()
        return [Event.parse(dict(row)) for row in rows]

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
        return registry_walk.edges(self._engine, [digest], up=True)

    def downstream(self, digest: str) -> list[Edge]:
        """Return every edge on a way from `digest` up to what was made from it, sorted."""
        return registry_walk.edges(self._engine, [digest], up=False)

    def products(self, digests: Iterable[str]) -> set[str]:
        """Return what was made from any of `digests`, directly or not."""
        return registry_walk.reached(self._engine, digests, up=False)

    def labels(self, digests: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return digest -> (kind, name) of the entries that exist."""
        return {one.digest: (one.kind, one.name) for one in self.entities(digests)}

    def entities(self, digests: Iterable[str]) -> list[Lineage]:
        """Return the entries that exist, without inputs, sorted by digest; an erased one has no name and payload."""
        columns = select(ENTITIES.c.digest, ENTITIES.c.kind, ENTITIES.c.name, ENTITIES.c.payload)
        wanted = [bytes.fromhex(digest) for digest in sorted(set(digests)) if DIGEST.fullmatch(digest)]
        with transaction(self._engine, writes=False) as connection:
            rows = [
                row
                for some in batches(wanted)
                for row in connection.execute(columns.where(ENTITIES.c.digest.in_(some)).order_by(ENTITIES.c.digest))
            ]
        return [_bare(row) for row in rows]

    def of_kind(self, kind: str) -> list[Lineage]:
        """Return all entries of a kind, without inputs, in the order in which they were recorded."""
        query = select(ENTITIES).where(ENTITIES.c.kind == kind).order_by(ENTITIES.c.id)
        with transaction(self._engine, writes=False) as connection:
            return [_bare(row) for row in connection.execute(query)]

    def inputs(self, digest: str) -> list[tuple[str, str, str]]:
        """Return (role, kind, digest) of each direct input, sorted."""
        made, source = ENTITIES.alias("made"), ENTITIES.alias("source")
        query = (
            select(EDGES.c.role, source.c.kind, source.c.digest)
            .join_from(made, MAKINGS, MAKINGS.c.entity == made.c.id)
            .join(EDGES, EDGES.c.making == MAKINGS.c.id)
            .join(source, source.c.id == EDGES.c.input)
            .where(made.c.digest == bytes.fromhex(digest))
            .distinct()
        )
        with transaction(self._engine, writes=False) as connection:
            return sorted((role, kind, found.hex()) for role, kind, found in connection.execute(query))

    def makers(self, digest: str) -> list[dict[str, Any]]:
        """Return the activities that made an entry, in the order in which they were recorded."""
        query = (
            select(MAKINGS.c.id, ACTIVITIES.c.digest, ACTIVITIES.c.payload)
            .join_from(ENTITIES, MAKINGS, MAKINGS.c.entity == ENTITIES.c.id)
            .join(RECORDINGS, RECORDINGS.c.id == MAKINGS.c.recording)
            .join(ACTIVITIES, ACTIVITIES.c.id == RECORDINGS.c.activity)
            .where(ENTITIES.c.digest == bytes.fromhex(digest))
            .order_by(MAKINGS.c.id)
        )
        with transaction(self._engine, writes=False) as connection:
            rows = connection.execute(query).all()
        found = {row.digest.hex(): json.loads(row.payload) for row in rows}
        return [{"id": id_} | payload for id_, payload in found.items()]

    def file_digests(self, digests: Iterable[str]) -> dict[str, str]:
        """Return SHA-256 of a source file -> digest of the document made from it, of the documents among `digests`."""
        documents = [one for one in self.entities(digests) if one.kind == "document"]
        return {str(one.payload.get("source_digest", one.digest)): one.digest for one in documents}

    def documents_of_file(self, file_digest: str) -> list[str]:
        """Return the digests of the documents that were made from a file with this SHA-256, sorted."""
        return sorted(self.documents_of_files([file_digest]).get(file_digest, ()))

    def documents_of_files(self, file_digests: Iterable[str]) -> dict[str, list[str]]:
        """Return SHA-256 of a file -> digests of the documents that were made from it, of those files that gave any."""
        return registry_walk.documents_of_files(self._engine, file_digests)

    def kinds(self) -> Counter[str]:
        """Return how many entries of each kind there are."""
        return registry_walk.kinds(self._engine)

    def head(self) -> str:
        """Return where both chains end, `recording:N:digest event:N:digest`: what an older copy does not hold."""
        return registry_verify.head(self._engine)

    def origin(self) -> str:
        """Return the digest of the first recording, which all copies of a registry share; "" before it."""
        return registry_verify.origin(self._engine)

    def lacking(self, heads: Iterable[str]) -> list[str]:
        """Return one line for each of some heads that this registry does not hold."""
        return registry_verify.lacking(self._engine, heads)

    def verify(self, heads: Iterable[str] = ()) -> list[str]:
        """Return one line for each stored row that is not what its digest says; [] when intact.

        `heads`: what `head` once returned; a registry that does not hold one of them was replaced or cut short.
        """
        return registry_verify.verify(self._engine, heads)

    def verify_entry(self, digest: str) -> list[str]:
        """Return one line for each row of an entry, and of all it was made from, that is not what its digest says."""
        return registry_verify.verify_entry(self._engine, digest)

    def _load(self, connection: Connection, digest: str) -> Lineage:
        row = connection.execute(select(ENTITIES).where(ENTITIES.c.digest == bytes.fromhex(digest))).one()
        edges = (
            select(EDGES.c.role, ENTITIES.c.digest)
            .join_from(MAKINGS, EDGES, EDGES.c.making == MAKINGS.c.id)
            .join(ENTITIES, ENTITIES.c.id == EDGES.c.input)
            .where(MAKINGS.c.entity == row.id)
            .distinct()
        )
        inputs = tuple(sorted((role, source.hex()) for role, source in connection.execute(edges)))
        return Lineage(row.kind, digest, row.name, _payload(row.payload), inputs)


def _bare(row: Any) -> Lineage:
    return Lineage(row.kind, row.digest.hex(), row.name, _payload(row.payload))


def _payload(text: str) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}


def _starting_with(connection: Connection, digits: str, kind: str = "") -> list[tuple[str, str, str]]:
    if len(digits) > 64 or not HEX.fullmatch(digits):
        return []
    column = ENTITIES.c.digest
    first, last = bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))
    query = select(column, ENTITIES.c.kind, ENTITIES.c.name).order_by(column).limit(MAX_CANDIDATES + 1)
    query = query.where(column >= first, column <= last)
    rows = connection.execute(query.where(ENTITIES.c.kind == kind) if kind else query)
    return [(digest.hex(), kind, name) for digest, kind, name in rows]


def _nearest(connection: Connection, digits: str) -> list[tuple[str, str, str]]:
    """Return entries that share the longest beginning with `digits`, whatever their kind."""
    known = HEX.match(digits)
    for length in range(len(known[0][:64]) if known else 0, -1, -1):
        if rows := _starting_with(connection, digits[:length]):
            return rows
    return []
