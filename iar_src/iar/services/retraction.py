"""Retraction: what may no longer be used, and hence no model made from it. It sticks until a named person restores it.

A document is retracted by the SHA-256 of its file, so that the same bytes under another name, or in a later run, are
retracted too; anything else by its digest in the registry. What was made from it stays, and is tainted.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from iar.errors import UserError
from iar.services.deeds import Deed, said
from iar.services.registry import ERASE, PROMOTE, RESTORE, RETRACT, ROLLBACK, Registry, short_id

FILE_DIGEST = re.compile(r"[0-9a-f]{64}")
TEXTS = ("source", "document", "chunk", "anchor", "qa", "retelling", "example")
DATASETS, MODELS, PUBLISHED = ("dataset",), ("checkpoint", "candidate"), ("scores", "decision", "report")


@dataclass(frozen=True)
class Retraction:
    """That `subject`, shown as `id`, was retracted at a Unix time."""

    subject: str
    id: str
    name: str
    reason: str
    time: float


@dataclass(frozen=True)
class Tainted:
    """An entry that was made from something retracted."""

    kind: str
    id: str
    name: str


@dataclass(frozen=True)
class Damage:
    """What a retraction takes with it: datasets to rebuild, models and numbers that no longer stand, aliases on them.

    counts: all that was made from it, by kind. aliases: MODEL@ALIAS -> version.
    """

    counts: Counter[str]
    datasets: tuple[Tainted, ...]
    models: tuple[Tainted, ...]
    published: tuple[Tainted, ...]
    aliases: dict[str, str]


def retractions(registry: Registry) -> list[Retraction]:
    """Return the retractions that stand, in order, the first of each subject since it was last restored."""
    found: dict[str, Retraction] = {}
    for event in registry.events(kinds=(RETRACT, RESTORE)):
        if event.kind == RESTORE:
            found.pop(event.subject, None)
            continue
        about = {key: str(event.payload.get(key, "")) for key in ("id", "name", "reason")}
        found.setdefault(event.subject, Retraction(event.subject, **about, time=event.time))
    return list(found.values())


def retract(registry: Registry, id_: str, reason: str, by: str = "") -> tuple[Retraction, bool]:
    """Retract what an id names, or a file by its SHA-256, known or not; return it and whether it is new.

    `by` is the person who decides, "" where nobody is named. Raises UserError for an id that names nothing, and without
    a reason.
    """
    reason = said("--reason", reason, "write why, it stays with the retraction")
    deed = Deed(RETRACT, {"reason": reason}, by=said("--by", by, "name the person who decides") if by else "")
    subject, shown, name = _subject(registry, id_.strip())
    if known := _standing(registry, subject):
        return known, False
    who = {"by": deed.by} if deed.by else {}
    registry.event(RETRACT, subject, {"id": shown, "name": name, "reason": reason} | who)
    deed.record(
        registry, registry.events(subject)[-1], [("retracted", one) for one in _entries(registry, [subject])[subject]]
    )
    made = _standing(registry, subject)
    assert made is not None
    return made, True


def restore(registry: Registry, id_: str, reason: str, by: str) -> Retraction:
    """Take a retraction back, as the decision of a named person; return what is so restored.

    Raises UserError for what is not retracted, was erased, and without a reason or a person.
    """
    reason = said("--reason", reason, "write why, it stays with the decision")
    deed = Deed(RESTORE, {"reason": reason}, by=said("--by", by, "name the person who decides"))
    subject, shown, _ = _subject(registry, id_.strip())
    standing = _standing(registry, subject)
    if standing is None:
        raise UserError(f"{shown}: not retracted, so nothing to restore; iar lineage retractions lists what is")
    registry.event(RESTORE, subject, {"id": shown, "name": standing.name, "reason": reason, "by": deed.by})
    deed.record(
        registry, registry.events(subject)[-1], [("restored", one) for one in _entries(registry, [subject])[subject]]
    )
    return standing


def erase(registry: Registry, id_: str, reason: str, by: str) -> int:
    """Remove names and contents of what is retracted, and of the chunks, questions and texts made from it.

    The graph keeps their digests and edges, and an event for each, with the person who decided. Returns how many
    entries were emptied. Raises UserError for what is not retracted, and without a reason or a person.
    """
    reason = said("--reason", reason, "write why, it stays with the erasure")
    deed = Deed(ERASE, {"reason": reason}, by=said("--by", by, "name the person who decides"))
    subject, _, _ = _subject(registry, id_.strip())
    digests = to_erase(registry, id_)
    count = registry.erase(digests, {"reason": reason, "by": deed.by, "of": subject})
    deed.record(
        registry, registry.events(subject)[-1], [("erased", one) for one in _entries(registry, [subject])[subject]]
    )
    return count


def to_erase(registry: Registry, id_: str) -> list[str]:
    """Return the digests of what `erase` would empty. Raises UserError for what is not retracted."""
    subject, shown, _ = _subject(registry, id_.strip())
    if _standing(registry, subject) is None:
        raise UserError(f"{shown}: not retracted; retract it first, so that no later run brings it back")
    entries = {subject, *_entries(registry, [subject])[subject]}
    own = registry.entities(registry.products(entries) | entries)
    gone = erased(registry)
    return [one.digest for one in own if one.kind in TEXTS and one.digest not in gone]


def erased(registry: Registry) -> set[str]:
    """Return the digests of the entries whose names and contents were removed."""
    return {event.subject for event in registry.events(kinds=(ERASE,))}


def retracted_entries(registry: Registry) -> dict[str, str]:
    """Return the reasons of all retractions by the digests of the entries that they name."""
    reasons = {one.subject: one.reason for one in retractions(registry)}
    named = _entries(registry, reasons)
    return {digest: reason for subject, reason in reasons.items() for digest in named[subject]}


def taints(registry: Registry, digest: str) -> dict[str, Retraction]:
    """Return the retracted entries that `digest` is or was made from, each with its retraction."""
    standing = {one.subject: one for one in retractions(registry)}
    found = {}
    for subject, entries in _entries(registry, standing).items():
        for entry in entries:
            if digest == entry or digest in registry.products([entry]):
                found[entry] = standing[subject]
    return found


def made_from(registry: Registry, subject: str) -> Counter[str]:
    """Return how many entries of each kind were made from what is retracted as `subject`."""
    return damage(registry, subject).counts


def damage(registry: Registry, subject: str) -> Damage:
    """Return what the retraction of `subject` takes with it."""
    entries = _entries(registry, [subject])[subject]
    products = registry.products(entries)
    found = registry.entities(products)
    last = {event.subject: event.payload for event in registry.events(kinds=(PROMOTE, ROLLBACK))}
    tainted = products | set(entries)

    def of(kinds: Iterable[str]) -> tuple[Tainted, ...]:
        return tuple(Tainted(one.kind, short_id(one.kind, one.digest), one.name) for one in found if one.kind in kinds)

    aliases = {alias: str(moved["version"]) for alias, moved in last.items() if moved.get("lineage") in tainted}
    return Damage(Counter(one.kind for one in found), of(DATASETS), of(MODELS), of(PUBLISHED), aliases)


def standing_aliases(registry: Registry, subject: str) -> dict[str, str]:
    """Return MODEL@ALIAS -> version of the promotions in force whose model is, or was made from, `subject`."""
    return damage(registry, subject).aliases


def _entries(registry: Registry, subjects: Iterable[str]) -> dict[str, list[str]]:
    """Return the entries that each subject stands for: the documents of a file, else the entry of that digest."""
    wanted = list(subjects)
    documents = registry.documents_of_files(wanted)
    if missing := set(wanted) - documents.keys():
        # A document that was erased no longer says of which file it was; the event does.
        emptied = [event for event in registry.events(kinds=(ERASE,)) if event.payload.get("of") in missing]
        for one in registry.entities(event.subject for event in emptied):
            if one.kind == "document":
                of = next(event.payload["of"] for event in emptied if event.subject == one.digest)
                documents.setdefault(of, []).append(one.digest)
    return {subject: documents.get(subject) or [subject] for subject in wanted}


def _standing(registry: Registry, subject: str) -> Retraction | None:
    return next((one for one in retractions(registry) if one.subject == subject), None)


def _subject(registry: Registry, id_: str) -> tuple[str, str, str]:
    """Return subject, shown id and name of what an id names."""
    if FILE_DIGEST.fullmatch(id_) and not registry.labels([id_]):
        documents = registry.documents_of_file(id_)
        names = [name for _, name in registry.labels(documents).values()]
        return id_, f"file:{id_[:12]}", ", ".join(sorted(names))
    entry = registry.find(id_)
    if entry.kind == "document":
        return _file_of(registry, entry.digest, entry.payload), short_id(entry.kind, entry.digest), entry.name
    return entry.digest, short_id(entry.kind, entry.digest), entry.name


def _file_of(registry: Registry, digest: str, payload: dict[str, object]) -> str:
    """Return the SHA-256 of a document's file; that of an erased document stands in its edge only."""
    files = [source for role, _, source in registry.inputs(digest) if role == "read-from"]
    return files[0] if files else str(payload.get("source_digest", digest))
