"""in-toto statements about models and evaluations, and the DSSE envelope that carries them.

Sources: in-toto attestation framework, Statement v1 (https://in-toto.io/Statement/v1); SLSA provenance v1
(https://slsa.dev/spec/v1.0/provenance); DSSE 1.0.2 (https://github.com/secure-systems-lab/dsse).
"""

from typing import Any

from iar.errors import UserError
from iar.methods.export_cyclonedx import DATASETS, MODELS, weights_of
from iar.methods.provenance import ROWS, Provenance, shown, timestamp
from iar.records import Lineage

STATEMENT = "https://in-toto.io/Statement/v1"
SLSA = "https://slsa.dev/provenance/v1"
EVALUATION = "urn:iar:evaluation-result:v1"
BUILD, BUILDER = "urn:iar:pipeline:v1", "urn:iar:builder"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
Json = dict[str, Any]


def pre_authentication(payload_type: str, body: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)


def statement_of(provenance: Provenance) -> Json:
    """Return the statement about the subject: a model, or its scores.

    Raises UserError for anything else, and for a model that no activity made.
    """
    subject = provenance.subject
    if subject.kind == "scores":
        return _statement(subject, EVALUATION, {"scores": dict(subject.payload)})
    if subject.kind in MODELS:
        return _statement(subject, SLSA, _build(provenance))
    raise UserError(
        f"{shown(subject)} ({subject.name}): a {subject.kind} is not signed; sign a checkpoint, a candidate or scores"
    )


def _statement(subject: Lineage, kind: str, predicate: Json) -> Json:
    named = {"name": shown(subject), "digest": {"sha256": subject.digest}}
    return {"_type": STATEMENT, "subject": [named], "predicateType": kind, "predicate": predicate}


def _build(provenance: Provenance) -> Json:
    """Return SLSA's predicate: who made the model, with what settings, from what."""
    subject = provenance.subject
    made = provenance.made_by(subject.digest)
    if not made:
        raise UserError(f"{shown(subject)} ({subject.name}): no activity made it, so there is nothing to attest")
    first = made[0]
    return {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": {"run": first.run_id, "stage": first.stage, "weights": weights_of(subject)},
            "internalParameters": {"configDigest": first.config_digest, "seed": first.seed},
            "resolvedDependencies": _dependencies(provenance),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"code": first.code_version}},
            "metadata": {
                "invocationId": first.id,
                "startedOn": timestamp(first.started),
                "finishedOn": timestamp(first.started + first.seconds),
            },
        },
    }


def _dependencies(provenance: Provenance) -> list[Json]:
    """Return what the model was made from directly, with roles, then the models and datasets below."""
    links = provenance.below.get(provenance.subject.digest, ())
    direct = sorted({(link.role, link.input) for link in links if provenance.entries[link.input].kind not in ROWS})
    named = {digest for _, digest in direct}
    below = [("upstream", one.digest) for one in provenance.parts(*MODELS, *DATASETS) if one.digest not in named]
    return [
        {"name": shown(provenance.entries[digest]), "digest": {"sha256": digest}, "annotations": {"role": role}}
        for role, digest in (*direct, *below)
    ]


def signed_digests(statement: Json) -> list[str]:
    """Return the digests that a statement says its subject was made from; [] where it says nothing of it."""
    build = statement["predicate"].get("buildDefinition", {})
    return [str(one["digest"]["sha256"]) for one in build.get("resolvedDependencies", ())]
