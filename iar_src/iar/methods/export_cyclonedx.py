"""CycloneDX 1.6 ML-BOM of a model: the model with its card, the models and the datasets that it was made from.

Source: the CycloneDX 1.6 JSON schema (ECMA-424), modelCard and componentData, https://cyclonedx.org/docs/1.6/json.
"""

from typing import Any

from iar.methods.provenance import (
    COMPARED,
    Provenance,
    public_source,
    scored,
    shown,
    taken_before,
    timestamp,
    unchecked,
    uuid_of,
)
from iar.records import Lineage

MODELS = ("checkpoint", "candidate")
DATASETS = ("dataset",)
PLACES = ("weights", "source", "origin")
"""What a payload says of where the weights are: told otherwise, or the folder of a machine."""
Json = dict[str, Any]


def ml_bom(provenance: Provenance, version: str) -> Json:
    """Return the BOM of the subject, a model; `version` is that of this package."""
    subject = provenance.subject
    made = provenance.made_by(subject.digest)
    parts = provenance.parts(*MODELS, *DATASETS)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid_of(subject.digest)}",
        "version": 1,
        "metadata": {
            **({"timestamp": timestamp(made[0].started + made[0].seconds)} if made else {}),
            "tools": {"components": [{"type": "application", "name": "iar", "version": version}]},
            "component": _model(subject, provenance) | {"modelCard": _card(provenance)},
        },
        "components": [_model(one, provenance) if one.kind in MODELS else _dataset(one) for one in parts],
        "dependencies": [_dependency(one, provenance) for one in (subject, *parts)],
    }


def _model(entry: Lineage, provenance: Provenance) -> Json:
    weights = weights_of(entry)
    return {
        "type": "machine-learning-model",
        "bom-ref": shown(entry),
        "name": public_source(entry) or entry.name or entry.kind,
        "version": entry.digest,
        "description": f"{entry.kind} {entry.name}".strip(),
        # The digest of a model in several files covers them one after the other, which is no file's hash.
        "properties": [{"name": "iar:weights:sha256", "value": weights}, *_properties(entry)],
    }


def _dataset(entry: Lineage) -> Json:
    counts = [{"name": f"iar:count:{key}", "value": str(value)} for key, value in _counts(entry).items()]
    return {
        "type": "data",
        "bom-ref": shown(entry),
        "name": entry.name,
        "version": entry.digest,
        "data": [{"type": "dataset", "name": entry.name, "contents": {"properties": counts}}],
    }


def _card(provenance: Provenance) -> Json:
    datasets = [{"ref": shown(one)} for one in provenance.parts(*DATASETS)]
    metrics = [
        {
            "type": suite,
            "value": f"{points:.2f}",
            "slice": "; ".join(filter(None, [f"{scores.payload['split']} split, points of 100", taken_before(scores)])),
            "confidenceInterval": {"lowerBound": f"{low:.2f}", "upperBound": f"{high:.2f}"},
        }
        for scores in provenance.scores
        for suite, points, low, high in scored(scores)
    ]
    missing = ", ".join(unchecked(provenance.scores))
    flattering = [f"Training data was not checked against {missing}: scores on them may flatter."] * bool(missing)
    return {
        "modelParameters": {
            "approach": {"type": "supervised"},
            "task": "text-generation",
            "inputs": [{"format": "chat messages"}],
            "outputs": [{"format": "text"}],
            **({"datasets": datasets} if datasets else {}),
        },
        **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
        "considerations": {
            "technicalLimitations": [
                "Answers from memory and can be wrong with confidence; nothing in a reply points to a source.",
                "A document cannot be taken out of the weights; one that is withdrawn is retracted in the registry.",
                *flattering,
            ]
        },
    }


def weights_of(entry: Lineage) -> str:
    """Return the digest of a model's weights: its own, but for a registered model, which has a decision beside it."""
    return str(entry.payload.get("weights") or entry.digest)


def _properties(entry: Lineage) -> list[Json]:
    plain = {
        key: value
        for key, value in entry.payload.items()
        if isinstance(value, str | int | float) and value != "" and key not in PLACES
    }
    return [{"name": f"iar:{key}", "value": str(value)} for key, value in sorted(plain.items())]


def _counts(entry: Lineage) -> dict[str, int]:
    return {key: value for key, value in sorted(entry.payload.items()) if isinstance(value, int)}


def _dependency(entry: Lineage, provenance: Provenance) -> Json:
    """Return the nearest models and datasets below an entry, over whatever lies between, such as a decision."""
    found: set[str] = set()
    waiting, seen = [entry.digest], {entry.digest}
    while waiting:
        for link in provenance.below.get(waiting.pop(), ()):
            if link.role in COMPARED or link.input in seen:
                continue
            seen.add(link.input)
            below = provenance.entries[link.input]
            if below.kind in (*MODELS, *DATASETS):
                found.add(shown(below))
            else:
                waiting.append(link.input)
    return {"ref": shown(entry), "dependsOn": sorted(found)}
