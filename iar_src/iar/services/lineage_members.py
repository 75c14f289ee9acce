"""What a dataset is made of, read from the registry with names and payloads."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from iar.errors import UserError
from iar.services.database import transaction
from iar.services.registry import Registry, short_id
from iar.services.registry_schema import EDGES, ENTITIES, MAKINGS

MADE, SOURCE = ENTITIES.alias("made"), ENTITIES.alias("source")


@dataclass(frozen=True)
class Member:
    """An entry of a dataset with what it is about."""

    digest: str
    kind: str
    name: str
    payload: dict[str, Any]

    @property
    def id(self) -> str:
        """The identity shown to people."""
        return short_id(self.kind, self.digest)


def dataset(registry: Registry, id_: str) -> str:
    """Return the digest of the dataset that an id names. Raises UserError for anything else."""
    entry = registry.find(id_)
    if entry.kind != "dataset":
        raise UserError(f"{short_id(entry.kind, entry.digest)}: not a dataset; give the id of one, dataset:...")
    return entry.digest


def members(registry: Registry, digest: str, role: str = "contains") -> dict[str, Member]:
    """Return what an entry was made from in a role, by digest, in the order of names."""
    query = select(SOURCE.c.digest, SOURCE.c.kind, SOURCE.c.name, SOURCE.c.payload)
    return _read(registry, _joined(query, role).where(MADE.c.digest == bytes.fromhex(digest)).order_by(SOURCE.c.name))


def products(registry: Registry, digest: str, role: str) -> dict[str, Member]:
    """Return what was made from an entry in a role, by digest, in the order of names."""
    query = select(MADE.c.digest, MADE.c.kind, MADE.c.name, MADE.c.payload)
    return _read(registry, _joined(query, role).where(SOURCE.c.digest == bytes.fromhex(digest)).order_by(MADE.c.name))


def _joined(query: Select[Any], role: str) -> Select[Any]:
    query = query.join_from(MADE, MAKINGS, MAKINGS.c.entity == MADE.c.id).join(EDGES, EDGES.c.making == MAKINGS.c.id)
    return query.join(SOURCE, SOURCE.c.id == EDGES.c.input).where(EDGES.c.role == role)


def _read(registry: Registry, query: Select[Any]) -> dict[str, Member]:
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query).all()
    return {
        digest.hex(): Member(digest.hex(), kind, name, json.loads(payload) if payload else {})
        for digest, kind, name, payload in rows
    }
