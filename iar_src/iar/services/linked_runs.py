"""The two ways between MLflow and the provenance registry: tags and dataset inputs there, events here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iar.methods.digest import canonical_json
from iar.methods.provenance import AGENTS, ROWS
from iar.records import Lineage
from iar.services.registry import Registry, short_id

LINEAGE_TAG, ACTIVITY_TAG = "iar.lineage", "iar.activity"
TRACKED, REGISTERED = "tracked", "registered"
"""Kinds of events: an activity has a run in MLflow; a model is a version there."""
MADE = "made"
UNLISTED = ROWS | AGENTS | {"source", "document", "rejects", "examples"}
MOST_IDS = 100


@dataclass(frozen=True)
class DatasetUse:
    """A dataset of the provenance registry as a task used it: `role` is trained-on, validated-on, made, ...

    `profile` are its counts.
    """

    name: str
    digest: str
    role: str
    profile: Mapping[str, Any]


def dataset_uses(registry: Registry, made: Sequence[Lineage]) -> list[DatasetUse]:
    """Return the datasets that a task made, and those that what it made was made from, each once a role."""
    own = {entry.digest: entry for entry in made if entry.kind == "dataset"}
    used = {(role, digest) for entry in made if entry.kind not in UNLISTED for role, digest in entry.inputs}
    kinds = registry.labels(digest for _, digest in used)
    uses = [_use(entry, MADE) for entry in own.values()]
    for role, digest in sorted(used):
        if kinds.get(digest, ("", ""))[0] == "dataset" and role != "contains":
            uses.append(_use(own.get(digest) or registry.find(digest), role))
    return uses


def lineage_tags(made: Sequence[Lineage], activity: str) -> dict[str, str]:
    """Return the tags that lead from a run in MLflow to the registry: its activity and the ids it made."""
    return {ACTIVITY_TAG: activity, LINEAGE_TAG: ", ".join(made_ids(made))}


def made_ids(made: Sequence[Lineage]) -> list[str]:
    """Return the ids of what a task made, as people see them; documents and rows are left out."""
    ids = [short_id(entry.kind, entry.digest) for entry in made if entry.kind not in UNLISTED]
    return ids[:MOST_IDS]


def link_run(registry: Registry, activity: str, uri: str, run: str) -> None:
    """Enter into the registry which MLflow run shows an activity, once."""
    _once(registry, TRACKED, activity, {"tracking_uri": uri, "run": run})


def link_version(registry: Registry, model: str, uri: str, name: str, version: str) -> None:
    """Enter into the registry which version of MLflow's model `name` a registered model is, once."""
    _once(registry, REGISTERED, model, {"tracking_uri": uri, "model": name, "version": version})


def artifact_metadata(run_id: str, task: str, ref: str, made: Sequence[Lineage]) -> str:
    """Return what a Kubeflow artifact says of its origin, as one JSON text: Kubeflow turns integers into floats."""
    return canonical_json({"run": run_id, "task": task, "artifact": ref, "lineage": made_ids(made)})


def _use(entry: Lineage, role: str) -> DatasetUse:
    counts = {name: value for name, value in entry.payload.items() if isinstance(value, int)}
    return DatasetUse(entry.name, entry.digest, role, counts)


def _once(registry: Registry, kind: str, subject: str, payload: dict[str, Any]) -> None:
    known = [event.payload for event in registry.events(subject) if event.kind == kind]
    if json.loads(canonical_json(payload)) not in known:
        registry.event(kind, subject, payload)
