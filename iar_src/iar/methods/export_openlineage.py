"""OpenLineage run events of a provenance: one START and one COMPLETE for every activity, in time order.

Source: the OpenLineage specification 2-0-2 and its facets, https://openlineage.io/docs/spec. A dataset is named by
its content, so that no later event can give another content to the same name.
"""

from typing import Any

from iar.methods.provenance import Activity, Flow, Provenance, flows, shown, timestamp, uuid_of
from iar.records import Lineage

NAMESPACE = "iar"
PRODUCER = "urn:iar:registry"
EVENT_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets"
OWN_FACET = "urn:iar:facet:1"
Json = dict[str, Any]


def openlineage_events(provenance: Provenance) -> list[Json]:
    """Return the events; documents, datasets, models, scores and decisions are datasets, rows are left out."""
    return [event for flow in flows(provenance) for event in _events(flow, provenance)]


def _events(flow: Flow, provenance: Provenance) -> list[Json]:
    activity = flow.activity
    inputs = [_dataset(provenance.entries[digest]) | _role(role) for role, digest in flow.inputs]
    outputs = [_dataset(provenance.entries[digest]) for digest in flow.outputs]
    about: Json = {
        "run": {"runId": uuid_of(activity.id), "facets": _run_facets(activity)},
        "job": {"namespace": NAMESPACE, "name": activity.stage, "facets": {"jobType": _job_type()}},
        "producer": PRODUCER,
        "schemaURL": EVENT_SCHEMA,
        "inputs": inputs,
    }
    ended = activity.started + activity.seconds
    return [
        about | {"eventType": "START", "eventTime": timestamp(activity.started), "outputs": []},
        about | {"eventType": "COMPLETE", "eventTime": timestamp(ended), "outputs": outputs},
    ]


def _run_facets(activity: Activity) -> Json:
    pipeline = {"run": {"runId": uuid_of(activity.run_id)}, "job": {"namespace": NAMESPACE, "name": "pipeline"}}
    own = {
        "activity": activity.id,
        "runId": activity.run_id,
        "configDigest": activity.config_digest,
        "seed": activity.seed,
    }
    return {
        "parent": _facet("1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet", pipeline),
        "processing_engine": _facet(
            "1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet",
            {"name": "iar", "version": activity.code_version},
        ),
        "iar_activity": {"_producer": PRODUCER, "_schemaURL": OWN_FACET, **own},
    }


def _job_type() -> Json:
    kind = {"processingType": "BATCH", "integration": "IAR", "jobType": "TASK"}
    return _facet("2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet", kind)


def _dataset(entry: Lineage) -> Json:
    facets = {
        "version": _facet(
            "1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet", {"datasetVersion": entry.digest}
        ),
        "documentation": _facet(
            "1-1-0/DocumentationDatasetFacet.json#/$defs/DocumentationDatasetFacet",
            {"description": f"{entry.kind} {entry.name}".strip()},
        ),
    }
    return {"namespace": NAMESPACE, "name": shown(entry), "facets": facets}


def _role(role: str) -> Json:
    return {"inputFacets": {"iar_role": {"_producer": PRODUCER, "_schemaURL": OWN_FACET, "role": role}}}


def _facet(schema: str, values: Json) -> Json:
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{schema}", **values}
