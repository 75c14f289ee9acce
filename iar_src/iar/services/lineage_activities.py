"""What was done, as the registry has it: the activities of a run, with those that failed, and what each cost."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from sqlalchemy import select

from iar.errors import UserError
from iar.services.database import transaction
from iar.services.registry import Registry, short_id
from iar.services.registry_records import FAILED, FINISHED, KILLED, Producer
from iar.services.registry_schema import ACTIVITIES


def activities(registry: Registry, run_id: str = "", failed: bool = False, kind: str = "") -> list[Producer]:
    """Return the activities of a run, or of all, in the order of their start; `failed`: those without a result only.

    `kind`: those of a kind only, such as "train".

    Raises UserError for a run that the registry does not know.
    """
    query = select(ACTIVITIES.c.payload).order_by(ACTIVITIES.c.id)
    query = query.where(ACTIVITIES.c.run_id == run_id) if run_id else query
    with transaction(registry.engine, writes=False) as connection:
        found = [Producer.parse(payload) for payload in connection.execute(query).scalars()]
    if run_id and not found:
        raise UserError(f"run {run_id!r}: the registry has no activity of it; iar lineage activities lists all runs")
    shown = (one for one in found if (one.status != FINISHED or not failed) and kind in ("", one.kind))
    return sorted(shown, key=lambda one: one.started)


def failed_uses(registry: Registry, digest: str) -> Iterator[tuple[str, Producer]]:
    """Yield (role, activity) of each activity without a result that was given an entry."""
    for one in activities(registry, failed=True):
        yield from ((role, one) for role, used in one.used if used == digest)


def activity_lines(registry: Registry, found: Iterable[Producer]) -> Iterator[str]:
    """Yield each activity in a line: when, what, how it ended, its cost and hardware; inputs where it has no result."""
    found = list(found)
    kinds = registry.labels(digest for one in found for _, digest in one.used)
    for one in found:
        when = datetime.fromtimestamp(one.started, UTC).strftime("%Y-%m-%d %H:%M")
        parts = [
            f"{one.status} after {one.seconds:.0f} s" if one.status in (FAILED, KILLED) else f"{one.seconds:.0f} s"
        ]
        parts += [f"{name.replace('_', ' ')} {amount:.6g}" for name, amount in sorted(one.cost.items())]
        parts += [f"{name} {count}" for name, count in one.counts.items()]
        parts += [f"{one.error}: {one.message}"] * bool(one.message)
        parts += [
            f"{role} {short_id(kinds[digest][0], digest)}"
            for role, digest in one.used
            if digest in kinds and one.status != FINISHED
        ]
        what = " ".join(filter(None, (when, one.run_id, one.stage)))
        yield f"{what}: {', '.join(parts)}" + f"; {one.hardware}" * bool(one.hardware)
