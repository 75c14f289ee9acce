"""PROV-JSON of a provenance: entities, activities, their use and generation, and agents; rows included.

Source: the PROV-JSON submission of 24 April 2013, https://www.w3.org/submissions/prov-json, over W3C PROV-DM.
"""

from collections.abc import Sequence
from typing import Any

from iar.methods.provenance import AGENTS, Activity, Provenance, timestamp
from iar.records import Lineage

PREFIX = "iar"
Json = dict[str, Any]


def prov_document(provenance: Provenance) -> Json:
    """Return the document. Roles stand on uses, digests are the identifiers; code, teachers and judges are agents."""
    entries, activities = sorted(provenance.entries.items()), sorted(provenance.activities.items())
    by = [link for link in provenance.links if provenance.entries[link.input].kind in AGENTS]
    links = [link for link in provenance.links if provenance.entries[link.input].kind not in AGENTS]
    uses = sorted({(link.activity, link.role, link.input) for link in links})
    made = sorted({(link.product, link.activity) for link in provenance.links})
    derived = sorted({(link.product, link.input, link.activity) for link in links})
    attributed = sorted({(link.product, link.input) for link in by})
    codes = sorted({activity.code_version for _, activity in activities})
    return {
        "prefix": {PREFIX: "urn:iar:", "xsd": "http://www.w3.org/2001/XMLSchema#"},
        "entity": {_id(digest): _entity(entry) for digest, entry in entries if entry.kind not in AGENTS},
        "activity": {_id(one): _activity(about) for one, about in activities},
        "agent": {_id(f"code-{code}"): _code(code) for code in codes}
        | {_id(digest): _entity(entry) for digest, entry in entries if entry.kind in AGENTS},
        "used": {
            f"_:u{number}": {"prov:activity": _id(activity), "prov:entity": _id(source), "prov:role": role}
            for number, (activity, role, source) in enumerate(uses, 1)
        },
        "wasGeneratedBy": _numbered("g", ("prov:entity", "prov:activity"), made),
        "wasDerivedFrom": _numbered("d", ("prov:generatedEntity", "prov:usedEntity", "prov:activity"), derived),
        "wasAttributedTo": _numbered("t", ("prov:entity", "prov:agent"), attributed),
        "wasAssociatedWith": _numbered(
            "a", ("prov:activity", "prov:agent"), [(one, f"code-{about.code_version}") for one, about in activities]
        ),
    }


def _entity(entry: Lineage) -> Json:
    return {"prov:label": entry.name or entry.kind, "prov:type": {"$": _id(entry.kind), "type": "prov:QUALIFIED_NAME"}}


def _activity(activity: Activity) -> Json:
    return {
        "prov:startTime": timestamp(activity.started),
        "prov:endTime": timestamp(activity.started + activity.seconds),
        "prov:label": activity.stage,
        _id("run"): activity.run_id,
        _id("config"): activity.config_digest,
        _id("seed"): str(activity.seed),
    }


def _code(code_version: str) -> Json:
    return {"prov:type": {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}, _id("code"): code_version}


def _numbered(letter: str, names: Sequence[str], relations: Sequence[Sequence[str]]) -> Json:
    """Return relations by a number of their own, each of the identifiers under its name."""
    return {
        f"_:{letter}{number}": {name: _id(one) for name, one in zip(names, relation, strict=True)}
        for number, relation in enumerate(relations, 1)
    }


def _id(name: str) -> str:
    return f"{PREFIX}:{name}"
