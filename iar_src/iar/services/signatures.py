"""What is signed in a registry: statements about its models and scores, and the folder of a run's model.

A signature is an event of its subject, so it stands in the hash chain, and whoever reads the registry can check it.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.methods.attestation import signed_digests, statement_of
from iar.methods.digest import canonical_json, digest_json
from iar.services.finalist import Finalist
from iar.services.provenance import provenance_of
from iar.services.registry import Event, Registry, short_id
from iar.services.signing import (
    PASSWORD,
    SHOWN_KEY_DIGITS,
    envelope_of,
    key_id,
    open_envelope,
    read_private_key,
    read_public_key,
)
from iar.services.workspace import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

SIGN, SIGN_FOLDER = "sign", "sign-folder"
"""Kinds of events; the subject of the second is the registered model."""
SIGNATURE_FILE = "model.sig"


def sign_entry(registry: Registry, id_: str, key: Path) -> bool:
    """Sign the statement about a model or its scores; return False where this key has signed the same already."""
    private = read_private_key(key)
    provenance = provenance_of(registry, id_)
    statement, digest = statement_of(provenance), provenance.subject.digest
    envelope, ours = envelope_of(statement, private), key_id(private.public_key())
    for event in _signatures(registry, digest):
        if event.payload["key"] == ours and event.payload["envelope"]["payload"] == envelope["payload"]:
            return False
    registry.event(SIGN, digest, {"key": ours, "envelope": envelope})
    return True


def signature_findings(registry: Registry, public_key: Path, digests: Iterable[str] | None = None) -> list[str]:
    """Return one line for each entry whose signature is missing or does not hold; None = whatever is signed.

    An entry holds if this key signed a statement about it, of which the registry says the same today.
    """
    key = read_public_key(public_key)
    if digests is None:
        digests = sorted({event.subject for event in registry.events() if event.kind == SIGN})
    wanted = list(digests)
    labels = registry.labels(wanted)
    return [line for digest in wanted for line in _entry_findings(registry, digest, labels.get(digest, ("?", "")), key)]


def _entry_findings(
    registry: Registry, digest: str, label: tuple[str, str], key: "EllipticCurvePublicKey"
) -> Iterator[str]:
    name = short_id(label[0], digest) + f" ({label[1]})" * bool(label[1])
    signatures = _signatures(registry, digest)
    if not signatures:
        yield f"{name}: not signed; sign it with iar sign {digest[:12]} --key KEY.pem"
        return
    ours = [event for event in signatures if event.payload.get("key") == key_id(key)]
    if not ours:
        signers = ", ".join(sorted({str(event.payload.get("key"))[:SHOWN_KEY_DIGITS] for event in signatures}))
        yield f"{name}: not signed by key {key_id(key)[:SHOWN_KEY_DIGITS]}, only by {signers}"
    for event in ours:
        try:
            _check_statement(registry, digest, open_envelope(event.payload.get("envelope"), key))
        except UserError as error:
            yield f"{name}: {error}"


def _check_statement(registry: Registry, digest: str, statement: dict[str, Any]) -> None:
    """Raise UserError for a statement about something else, or of which the registry says otherwise."""
    named = [one["digest"]["sha256"] for one in statement["subject"]]
    if named != [digest]:
        raise UserError(f"the statement is about {', '.join(one[:12] for one in named)}, not about this")
    scores = statement["predicate"].get("scores")
    if scores is not None and digest_json(scores) != digest:
        raise UserError("the statement's scores are not those of this entry")
    sources = {edge.input for edge in registry.upstream(digest)}
    for source in signed_digests(statement):
        if source not in sources:
            raise UserError(f"was signed as made from {source[:12]}, which the registry does not say any more")


def _signatures(registry: Registry, digest: str) -> list[Event]:
    return [event for event in registry.events(digest) if event.kind == SIGN]


def sign_run(one: Finalist, registry: Registry, key: Path) -> list[str]:
    """Sign a finished run: its model, the model's scores on the test, and the folder; return what is signed now.

    The folder's signature is written beside the run, too, as `model.sig`.
    """
    read_private_key(key)
    place = Workspace.of(one.run_file).run(one.run_file.run_id) / SIGNATURE_FILE
    bundle = _sign_folder(one.model, key, place)
    registry.event(SIGN_FOLDER, one.lineage, {"bundle": bundle})
    names = []
    for digest in signed_entries(one):
        sign_entry(registry, digest, key)
        kind, name = registry.labels([digest])[digest]
        names.append(f"{short_id(kind, digest)} ({name})")
    return [*names, f"{one.model} in {place}"]


def signed_entries(one: Finalist) -> list[str]:
    """Return the digests that a run's signature covers: the registered model and its scores on the test."""
    return list(filter(None, [one.lineage, one.scores_entry]))


def run_findings(one: Finalist, registry: Registry, public_key: Path) -> list[str]:
    """Return one line for each part of a finished run whose signature is missing or does not hold."""
    return [
        *signature_findings(registry, public_key, signed_entries(one)),
        *_folder_findings(one, registry, public_key),
    ]


def _sign_folder(folder: Path, key: Path, place: Path) -> Any:
    """Sign every file of a folder as OpenSSF model signing does; write and return the Sigstore bundle."""
    signing = _model_signing("signing")
    part = place.with_name(f"{place.name}.part")
    config = signing.Config().use_elliptic_key_signer(private_key=key, password=os.environ.get(PASSWORD) or None)
    try:
        config.sign(folder, part)
    except ValueError as error:
        raise UserError(f"{folder}: cannot be signed: {_first_line(error)}") from error
    part.replace(place)
    return json.loads(place.read_text(encoding="utf-8"))


def _folder_findings(one: Finalist, registry: Registry, public_key: Path) -> list[str]:
    bundles = [event.payload["bundle"] for event in registry.events(one.lineage) if event.kind == SIGN_FOLDER]
    if not bundles:
        return [f"{one.model}: not signed; sign it with iar sign RUN.yaml --key KEY.pem"]
    faults = [fault for bundle in bundles for fault in folder_findings(one.model, bundle, public_key)]
    return [] if len(faults) < len(bundles) else faults[:1]


def folder_findings(folder: Path, bundle: Any, public_key: Path) -> list[str]:
    """Return the line that says why a model's folder is not what was signed; [] where it is."""
    verifying = _model_signing("verifying")
    read_public_key(public_key)
    with tempfile.TemporaryDirectory(prefix="iar-signature-") as aside:
        signature = Path(aside) / SIGNATURE_FILE
        signature.write_text(canonical_json(bundle), encoding="utf-8")
        try:
            verifying.Config().use_elliptic_key_verifier(public_key=public_key).verify(folder, signature)
        except ValueError as error:
            return [f"{folder}: {_mismatch(str(error))}"]
        except Exception as error:
            # cryptography's InvalidSignature has no text, and a damaged bundle fails in many ways.
            return [f"{folder}: the signature does not hold ({type(error).__name__})"]
    return []


def _mismatch(message: str) -> str:
    """Return model-signing's list of differences, which shows digests as bytes, as what differs and how."""
    text = message.replace("\\'", "'")
    found = [f"{name} is not what was signed" for name in re.findall("Hash mismatch for '([^']+)'", text)]
    for word, what in (("Extra", "was not signed"), ("Missing", "was signed and is gone")):
        names = re.search(rf"{word} files (?:found )?in model '[^']*': ([^'\"]+)", text)
        found += [f"{name} {what}" for name in names[1].split(", ")] if names else []
    return "; ".join(found) or (message.strip().splitlines() or ["the signature does not hold"])[0]


def _model_signing(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"model_signing.{module}")
    except ImportError as error:
        raise UserError("signing a model's folder needs the package model-signing: pip install 'iar[sign]'") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
