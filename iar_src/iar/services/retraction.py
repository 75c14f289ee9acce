"""Retraction: what may no longer be used, and hence no model made from it. It sticks: nothing takes it back.

A document is retracted by the SHA-256 of its file, so that the same bytes under another name, or in a later run, are
retracted too; anything else by its digest in the registry.
"""

import re
from collections import Counter
from dataclasses import dataclass

from iar.errors import UserError
from iar.services.registry import PROMOTE, RETRACT, ROLLBACK, Registry, short_id

FILE_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Retraction:
    """That `subject`, shown as `id`, was retracted at a Unix time."""

    subject: str
    id: str
    name: str
    reason: str
    time: float


def retractions(registry: Registry) -> list[Retraction]:
    """Return all retractions in order, the first of each subject."""
    found: dict[str, Retraction] = {}
    for event in registry.events():
        if event.kind == RETRACT:
            about = {key: str(event.payload.get(key, "")) for key in ("id", "name", "reason")}
            found.setdefault(event.subject, Retraction(event.subject, **about, time=event.time))
    return list(found.values())


def retract(registry: Registry, id_: str, reason: str) -> tuple[Retraction, bool]:
    """Retract what an id names, or a file by its SHA-256, known or not; return it and whether it is new.

    Raises UserError for an id that names nothing, and without a reason.
    """
    reason = " ".join(reason.split())
    if not reason or not reason.isprintable():
        raise UserError(f"--reason {reason!r}: says nothing; write why, it stays with the retraction")
    subject, shown, name = _subject(registry, id_.strip())
    if known := _standing(registry, subject):
        return known, False
    registry.event(RETRACT, subject, {"id": shown, "name": name, "reason": reason})
    made = _standing(registry, subject)
    assert made is not None
    return made, True


def retracted_entries(registry: Registry) -> dict[str, str]:
    """Return the reasons of all retractions by the digests of the entries that they name."""
    return {
        digest: one.reason
        for one in retractions(registry)
        for digest in registry.documents_of_file(one.subject) or [one.subject]
    }


def made_from(registry: Registry, subject: str) -> Counter[str]:
    """Return how many entries of each kind were made from what is retracted as `subject`."""
    return Counter(kind for kind, _ in registry.labels(_products(registry, subject)).values())


def standing_aliases(registry: Registry, subject: str) -> dict[str, str]:
    """Return MODEL@ALIAS -> version of the promotions in force whose model is, or was made from, `subject`."""
    last = {event.subject: event.payload for event in registry.events() if event.kind in (PROMOTE, ROLLBACK)}
    tainted = _products(registry, subject) | {subject}
    return {alias: str(moved["version"]) for alias, moved in last.items() if moved.get("lineage") in tainted}


def _products(registry: Registry, subject: str) -> set[str]:
    documents = registry.documents_of_file(subject)
    return {edge.product for digest in documents or [subject] for edge in registry.downstream(digest)}


def _standing(registry: Registry, subject: str) -> Retraction | None:
    return next((one for one in retractions(registry) if one.subject == subject), None)


def _subject(registry: Registry, id_: str) -> tuple[str, str, str]:
    """Return subject, shown id and name of what an id names."""
    if FILE_DIGEST.fullmatch(id_) and not registry.labels([id_]):
        documents = registry.documents_of_file(id_)
        names = [name for _, name in registry.labels(documents).values()]
        return id_, f"file:{id_[:12]}", ", ".join(sorted(names))
    entry = registry.find(id_)
    subject = str(entry.payload.get("source_digest", entry.digest)) if entry.kind == "document" else entry.digest
    return subject, short_id(entry.kind, entry.digest), entry.name
