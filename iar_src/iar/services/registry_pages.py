"""What lies in a registry, a page at a time, and the activities behind its edges: for exports and for the read API."""

import json
from collections.abc import Iterable

from sqlalchemy import select

from iar.records import Lineage
from iar.services.database import transaction
from iar.services.registry import Producer, Registry
from iar.services.registry_schema import ACTIVITIES, ENTITIES
from iar.services.registry_write import batches


def activities(registry: Registry, ids: Iterable[str]) -> dict[str, Producer]:
    """Return id -> activity of those that exist."""
    wanted = [bytes.fromhex(id_) for id_ in sorted(set(ids))]
    query = select(ACTIVITIES.c.digest, ACTIVITIES.c.payload)
    with transaction(registry.engine, writes=False) as connection:
        rows = [
            row for some in batches(wanted) for row in connection.execute(query.where(ACTIVITIES.c.digest.in_(some)))
        ]
    return {row.digest.hex(): Producer(**json.loads(row.payload)) for row in rows}


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
