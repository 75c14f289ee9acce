"""PROV-JSON of a provenance: entities, activities, their use and generation, rows included.

Source: the PROV-JSON submission of 24 April 2013, https://www.w3.org/submissions/prov-json, over W3C PROV-DM.
"""

from typing import Any

from iar.methods.provenance import Activity, Provenance, timestamp
from iar.records import Lineage

PREFIX = "iar"
Json = dict[str, Any]


def prov_document(provenance: Provenance) -> Json:
    """Return the document. Roles stand on uses, digests are the identifiers, software is the agent."""
    links = sorted((link.product, link.role, link.input, link.activity) for link in provenance.links)
    uses = dict.fromkeys((activity, role, source) for _, role, source, activity in links)
    made = dict.fromkeys((product, activity) for product, _, _, activity in links)
    derived = dict.fromkeys((product, source, activity) for product, _, source, activity in links)
    agents = {activity.code_version for activity in provenance.activities.values()}
    return {
        "prefix": {PREFIX: "urn:iar:", "xsd": "http://www.w3.org/2001/XMLSchema#"},
        "entity": {_id(digest): _entity(entry) for digest, entry in sorted(provenance.entries.items())},
        "activity": {_id(one): _activity(about) for one, about in sorted(provenance.activities.items())},
        "agent": {_id(f"code-{code}"): _agent(code) for code in sorted(agents)},
        "used": _numbered(
            "u", ({"prov:activity": _id(a), "prov:entity": _id(e), "prov:role": role} for a, role, e in uses)
        ),
        "wasGeneratedBy": _numbered("g", ({"prov:entity": _id(e), "prov:activity": _id(a)} for e, a in made)),
        "wasDerivedFrom": _numbered(
            "d",
            (
                {"prov:generatedEntity": _id(new), "prov:usedEntity": _id(old), "prov:activity": _id(a)}
                for new, old, a in derived
            ),
        ),
        "wasAssociatedWith": _numbered(
            "a",
            (
                {"prov:activity": _id(one), "prov:agent": _id(f"code-{about.code_version}")}
                for one, about in sorted(provenance.activities.items())
            ),
        ),
    }


def _entity(entry: Lineage) -> Json:
    return {"prov:label": entry.name or entry.kind, "prov:type": _qualified(entry.kind)}


def _activity(activity: Activity) -> Json:
    return {
        "prov:startTime": timestamp(activity.started),
        "prov:endTime": timestamp(activity.started + activity.seconds),
        "prov:label": activity.stage,
        _id("run"): activity.run_id,
        _id("config"): activity.config_digest,
        _id("seed"): str(activity.seed),
    }


def _agent(code_version: str) -> Json:
    return {"prov:type": {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}, _id("code"): code_version}


def _qualified(kind: str) -> Json:
    return {"$": _id(kind), "type": "prov:QUALIFIED_NAME"}


def _numbered(letter: str, relations: Any) -> Json:
    return {f"_:{letter}{number}": relation for number, relation in enumerate(relations, 1)}


def _id(name: str) -> str:
    return f"{PREFIX}:{name}"
