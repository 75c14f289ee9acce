"""The recipe of an entry: the activities behind it, and what makes each come out the same."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from iar.services.database import transaction
from iar.services.registry import Registry, short_id
from iar.services.registry_schema import ACTIVITIES, MAKINGS, RECORDINGS
from iar.services.registry_walk import steps
from iar.services.registry_write import BATCH, batches, numbers


def reproduce(registry: Registry, id_: str) -> dict[str, Any]:
    """Return the recipe of an entry: its runs and their activities in order, each with `how` it comes out the same."""
    entry = registry.find(id_)
    activities = [activity | {"how": how(activity)} for activity in _activities(registry, entry.digest)]
    ordered = sorted(activities, key=lambda one: (one["started"], one["stage"]))
    runs = list(dict.fromkeys(one["run_id"] for one in ordered if one["run_id"]))
    return {"id": short_id(entry.kind, entry.digest), "name": entry.name, "runs": runs, "activities": ordered}


def _activities(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """Return the activities of an entry and of what it was made from; a large dataset's stands for its members'."""
    found: dict[int, dict[str, Any]] = {}
    query = select(ACTIVITIES.c.id, ACTIVITIES.c.digest, ACTIVITIES.c.payload).distinct()
    query = query.join(RECORDINGS, RECORDINGS.c.activity == ACTIVITIES.c.id)
    query = query.join(MAKINGS, MAKINGS.c.recording == RECORDINGS.c.id)
    with transaction(registry.engine, writes=False) as connection:
        seen = frontier = set(numbers(connection, [digest]).values())
        while frontier:
            for some in batches(sorted(frontier)):
                for row in connection.execute(query.where(MAKINGS.c.entity.in_(some))):
                    found[row.id] = {"id": row.digest.hex()} | json.loads(row.payload)
            reached = {number for step in steps(connection, frontier, True, BATCH) for number in step.members}
            frontier = reached - seen
            seen = seen | reached
    return list(found.values())


def how(activity: Mapping[str, Any]) -> str:
    """Return what makes an activity come out the same: the computation itself, or replies that are kept."""
    stage, config = str(activity["stage"]), json.dumps(activity.get("config", {}))
    if stage.startswith("base-model"):
        return "fetched: the same revision gives the same bytes, which are checked"
    if stage.startswith("qa-build") and '"teacher": "offline"' not in config:
        return "replayed: the teacher's replies from STATE/llm-cache; asked anew, others may come"
    if stage.startswith(("judge-eval", "locked-test")):
        return "replies computed again; the votes of judges that are servers replayed from STATE/llm-cache"
    if stage.startswith(("inject", "align", "baseline", "sdft", "vanilla")):
        return "deterministic on the same hardware with the same packages; else equal up to rounding"
    return "deterministic"
