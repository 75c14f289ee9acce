"""Retracted documents on their way into a run: left out when read, and a reason to build a dataset again.

A dataset keeps which retracted files it met. It is reused as long as that is what would be left out of it today; else
its key names what is, so that the earlier one stays as it is for the runs that were made with it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iar.records import Document, read_records, write_json
from iar.services.workspace import WITHHELD

DOCUMENTS = "documents.jsonl"
RETRACTED = "retracted"


@dataclass
class Withheld:
    """What may not be read, by SHA-256, what of it was met, and the files of rows that were opened."""

    retracted: frozenset[str] = frozenset()
    met: set[str] = field(default_factory=set)
    row_files: set[str] = field(default_factory=set)

    def holds(self, digest: str) -> bool:
        """Tell whether a file or row may not be read, and remember that it was met."""
        if digest in self.retracted:
            self.met.add(digest)
        return digest in self.retracted

    def write(self, out: Path) -> None:
        """Write what was met under `out`, where there is anything to say."""
        if self.met or self.row_files:
            write_json(out / WITHHELD, {"met": sorted(self.met), "row_files": sorted(self.row_files)})


def retracted_now(registry_url: str) -> frozenset[str]:
    """Return the SHA-256 of everything whose retraction stands; none where there is no registry yet."""
    from iar.services.registry import Registry
    from iar.services.retraction import retractions

    registry = Registry.open_to_read(registry_url)
    if registry is None:
        return frozenset()
    try:
        return frozenset(one.subject for one in retractions(registry))
    finally:
        registry.close()


def with_retractions(parts: dict[str, Any], dataset: Path, retracted: Iterable[str]) -> dict[str, Any]:
    """Return the key parts of a dataset: other ones where `dataset`, made with these, would hold other files today."""
    if not (dataset / DOCUMENTS).is_file():
        return parts
    told = json.loads((dataset / WITHHELD).read_text(encoding="utf-8")) if (dataset / WITHHELD).is_file() else {}
    met = set(told.get("met", ()))
    there = {one.source_digest for one in read_records(dataset / DOCUMENTS, Document)}
    wanted = set(retracted) & (there | met | set(told.get("row_files", ())))
    return parts if wanted == met else parts | {RETRACTED: sorted(wanted)}
