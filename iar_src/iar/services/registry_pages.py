"""What lies in a registry, a page at a time, and the activities behind its edges: for exports and for the read API."""

import json
from collections.abc import Iterable

from sqlalchemy import select

from iar.records import Lineage
from iar.services.database import transaction
from iar.services.registry import BATCH, Producer, Registry
from iar.services.registry_schema import ACTIVITIES, ENTITIES


def activities(registry: Registry, ids: Iterable[str]) -> dict[str, Producer]:
    """Return id -> activity of those that exist."""
    found: dict[str, Producer] = {}
    wanted = sorted(set(ids))
    with transaction(registry.engine, writes=False) as connection:
        for start in range(0, len(wanted), BATCH):
            query = select(ACTIVITIES).where(ACTIVITIES.c.id.in_(wanted[start : start + BATCH]))
            for row in connection.execute(query).mappings():
                found[row["id"]] = Producer(**{name: row[name] for name in row if name != "id"})
    return found


def page(registry: Registry, kind: str, after: str, limit: int) -> list[Lineage]:
    """Return at most `limit` entries of a kind ("" = all) in the order of digests behind `after`; without inputs."""
    query = select(ENTITIES).where(ENTITIES.c.digest > after).order_by(ENTITIES.c.digest).limit(limit)
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query.where(ENTITIES.c.kind == kind) if kind else query).all()
    return [Lineage(row.kind, row.digest, row.name, json.loads(row.payload)) for row in rows]
