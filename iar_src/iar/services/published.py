"""The manifests of artifacts as the registry knows them: who changes a file can mend its manifest, not this chain."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from iar.methods.digest import digest_file
from iar.services.registry import Registry
from iar.services.workspace import MANIFEST

PUBLISHED = "published"
"""The kind of event that says which manifest an artifact had; its subject is TASK/KEY."""


def place_of(artifact: Path) -> str:
    """Return the name by which the registry knows where an artifact lies, in whichever state folder."""
    return f"{artifact.parent.name}/{artifact.name}"


def note_published(registry: Registry, place: str, digest: str) -> None:
    """Enter the SHA-256 of an artifact's manifest, once: with the manifest it vouches for every file."""
    if digest not in {event.payload["manifest"] for event in registry.events(place, [PUBLISHED])}:
        registry.event(PUBLISHED, place, {"manifest": digest})


def replaced(registry: Registry, folders: Iterable[Path]) -> Iterator[str]:
    """Yield the artifacts whose manifest was written anew after the registry had seen it: with files that fit it."""
    known: dict[str, set[str]] = {}
    for event in registry.events(kinds=[PUBLISHED]):
        known.setdefault(event.subject, set()).add(str(event.payload["manifest"]))
    for folder in folders:
        seen = known.get(place_of(folder))
        if seen and digest_file(folder / MANIFEST) not in seen:
            yield f"{folder}: its manifest is not the one that was recorded, so neither need its files be"
