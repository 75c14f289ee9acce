"""How two datasets, two runs or two entries differ, and why."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select

from iar.services.activity import INGEST
from iar.services.database import transaction
from iar.services.lineage_members import Member, members
from iar.services.registry import Registry, short_id
from iar.services.registry_records import DRAWN_FROM, FINISHED, Producer
from iar.services.registry_schema import ACTIVITIES
from iar.services.retraction import taints

# Of its own run, or what follows from what is compared.
NOT_COMPARED = ("id", "run_id", "started", "seconds", "config_digest", "cost", "counts", "used", "made", "kind")


@dataclass(frozen=True)
class Difference:
    """One item in which two datasets or runs differ: `change` is added, removed or changed, `why` the reason."""

    change: str
    item: str
    why: str


def diff(registry: Registry, one: str, other: str) -> list[Difference]:
    """Return how `other` differs from `one`: two datasets, two runs by their ids, or two entries by how they were made.

    Raises UserError where an id names nothing.
    """
    first, second = _run(registry, one), _run(registry, other)
    if first and second:
        return _diff_runs(first, second)
    a, b = registry.find(one), registry.find(other)
    if a.kind == b.kind == "dataset":
        return _diff_datasets(registry, a.digest, b.digest)
    makers = [{entry["stage"]: entry for entry in registry.makers(digest)[-1:]} for digest in (a.digest, b.digest)]
    facts = ({"payload": a.payload, "inputs": a.inputs}, {"payload": b.payload, "inputs": b.inputs})
    return [*_diff_runs(*makers), *_changes("entry", *map(_flat, facts))]


def _diff_datasets(registry: Registry, one: str, other: str) -> list[Difference]:
    before, after = members(registry, one), members(registry, other)
    gone = [before[digest] for digest in before.keys() - after.keys()]
    new = {member.name: after[member.digest] for member in map(after.get, after.keys() - before.keys()) if member}
    documents = members(registry, other, DRAWN_FROM)
    kept = {str(member.payload.get("id")) for member in documents.values()}
    found = []
    for member in sorted(gone, key=lambda member: member.name):
        if successor := new.pop(member.name, None):
            fields = [change.item for change in _changes("", _flat(member.payload), _flat(successor.payload))]
            found.append(Difference("changed", member.id, f"{', '.join(fields) or 'text'}; now {successor.id}"))
        else:
            found.append(Difference("removed", member.id, _why_gone(registry, member, kept)))
    added = sorted(new.values(), key=lambda member: member.name)
    earlier = {str(member.payload.get("id")) for member in members(registry, one, DRAWN_FROM).values()}
    return found + [Difference("added", member.id, _why_new(member, earlier)) for member in added]


def _why_gone(registry: Registry, member: Member, kept: set[str]) -> str:
    if found := taints(registry, member.digest):
        retraction = next(iter(found.values()))
        return f"{retraction.id} was retracted: {retraction.reason}"
    document = str(member.payload.get("document_id", ""))
    if kept and document and document not in kept:
        return f"its document {document} is not in the other dataset"
    return "its document is still there: not made again, or dropped on the way (rejects.parquet tells the reason)"


def _why_new(member: Member, earlier: set[str]) -> str:
    document = str(member.payload.get("document_id", ""))
    return f"its document {document} is new" if earlier and document and document not in earlier else "newly made"


def _run(registry: Registry, run_id: str) -> dict[str, dict[str, Any]]:
    """Return stage -> what is on record of the activity, of the run of exactly this id; the last finished of each."""
    query = select(ACTIVITIES.c.digest, ACTIVITIES.c.payload).where(ACTIVITIES.c.run_id == run_id)
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query.order_by(ACTIVITIES.c.id)).all()
    found = [producer for row in rows if (producer := Producer.parse(row.payload)).status == FINISHED]
    return {producer.stage: asdict(producer) | {"data": _data(producer)} for producer in found}


def _data(producer: Producer) -> dict[str, str]:
    """Return the data that an activity brought into its run: datasets, and models that were fetched."""
    taken = ("dataset", "checkpoint") if producer.kind == INGEST else ("dataset",)
    return {kind: short_id(kind, digest) for kind, digest in producer.made if kind in taken}


def _diff_runs(one: Mapping[str, dict[str, Any]], other: Mapping[str, dict[str, Any]]) -> list[Difference]:
    found = [Difference("removed", stage, "only the first has it") for stage in one if stage not in other]
    for stage, activity in other.items():
        if stage not in one:
            found.append(Difference("added", stage, "only the second has it"))
        else:
            sides = (_compared(stage, side) for side in (one[stage], activity))
            found += _changes(stage, *map(_flat, sides))
    return found


def _compared(stage: str, activity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two runs are compared by: of a step of a QA build its counts, for the rest stands with the build."""
    if "/" in stage:
        return {"counts": activity["counts"]}
    return {key: value for key, value in activity.items() if key not in NOT_COMPARED}


def _changes(stage: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [
        Difference(
            "changed", f"{stage} {name}".strip(), f"{before.get(name, 'not there')} -> {after.get(name, 'not there')}"
        )
        for name in names
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted place."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for name, inner in value.items():
        leaves |= _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    return leaves
