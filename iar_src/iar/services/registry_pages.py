"""What lies in a registry, a page at a time, and the activities behind its edges: for exports and for the read API."""

import json
from collections.abc import Iterable

from sqlalchemy import literal, select, tuple_

from iar.records import Lineage
from iar.services.database import transaction
from iar.services.registry import Edge, Event, Producer, Registry
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, EVENTS
from iar.services.registry_walk import edges_query
from iar.services.registry_write import batches


def activities(registry: Registry, ids: Iterable[str]) -> dict[str, Producer]:
    """Return id -> activity of those that exist."""
    wanted = [bytes.fromhex(id_) for id_ in sorted(set(ids))]
    query = select(ACTIVITIES.c.digest, ACTIVITIES.c.payload)
    with transaction(registry.engine, writes=False) as connection:
        rows = [
            row for some in batches(wanted) for row in connection.execute(query.where(ACTIVITIES.c.digest.in_(some)))
        ]
    return {row.digest.hex(): Producer.parse(row.payload) for row in rows}


def activities_page(registry: Registry, run_id: str, after: int, limit: int) -> list[tuple[int, Producer]]:
    """Return at most `limit` activities of a run ("" = all) behind the one numbered `after`, in order of recording."""
    query = select(ACTIVITIES.c.id, ACTIVITIES.c.payload).where(ACTIVITIES.c.id > after).order_by(ACTIVITIES.c.id)
    query = query.limit(limit)
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query.where(ACTIVITIES.c.run_id == run_id) if run_id else query).all()
    return [(row.id, Producer.parse(row.payload)) for row in rows]


def page(registry: Registry, kind: str, after: str, limit: int) -> list[Lineage]:
    """Return at most `limit` entries of a kind ("" = all) in the order of digests behind `after`; without inputs.

    An erased entry has no name and no payload.
    """
    columns = (ENTITIES.c.digest, ENTITIES.c.kind, ENTITIES.c.name, ENTITIES.c.payload)
    query = select(*columns).where(ENTITIES.c.digest > bytes.fromhex(after)).order_by(ENTITIES.c.digest).limit(limit)
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query.where(ENTITIES.c.kind == kind) if kind else query).all()
    return [
        Lineage(row.kind, row.digest.hex(), row.name, json.loads(row.payload) if row.payload else {}) for row in rows
    ]


def edges_page(registry: Registry, digest: str, up: bool, after: str, limit: int) -> tuple[list[Edge], str]:
    """Return at most `limit` edges on the ways up from `digest` to its sources, or down, and the `after` of the next.

    They come in the order in which they were recorded: `after` is "" at the beginning, and at the end. What is
    recorded between two pages is met on a later one, or not at all; nothing comes twice.
    """
    place = EDGES.c.making, EDGES.c.role, EDGES.c.input
    with transaction(registry.engine, writes=False) as connection:
        query = edges_query(connection, [digest], up).add_columns(EDGES.c.making, EDGES.c.input)
        if after:
            making, role, source = after.split(":")
            query = query.where(tuple_(*place) > tuple_(literal(int(making)), literal(role), literal(int(source))))
        rows = connection.execute(query.order_by(*place).limit(limit + 1)).all()
    shown = [Edge(made.hex(), role, source.hex(), activity.hex()) for made, role, source, activity, *_ in rows[:limit]]
    if len(rows) <= limit:
        return shown, ""
    _, role, _, _, making, source = rows[limit - 1]
    return shown, f"{making}:{role}:{source}"


def events_page(registry: Registry, subject: str, after: int, limit: int) -> list[Event]:
    """Return at most `limit` events of a subject ("" = all) behind the one numbered `after`, in order."""
    query = select(EVENTS).where(EVENTS.c.id > after).order_by(EVENTS.c.id).limit(limit)
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query.where(EVENTS.c.subject == subject) if subject else query).mappings().all()
    return [Event.parse(dict(row)) for row in rows]
