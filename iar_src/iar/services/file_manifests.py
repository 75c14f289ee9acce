"""Weights in the registry say which files they stand in: the digest of all files of the folder, and the base model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from iar.methods.digest import digest_json
from iar.records import Lineage
from iar.services.checkpoints import recorded_digest
from iar.services.workspace import StoredFile

WEIGHTS = ("checkpoint", "candidate")
RECORD = "checkpoint.json"


def with_files(lineage: Iterable[Lineage], work: Path, files: Sequence[StoredFile], base: str) -> tuple[Lineage, ...]:
    """Return entries of a stage, those of weights with `files`, the digest of path -> SHA-256 of their folder's files.

    `files` lie under `work`; `base` is the digest of the run's theta_0, "" where there is none; what was
    made of nothing, theta_0 itself and models from elsewhere, has none.
    """
    digest_of = {recorded_digest(work / folder): digest_json(dict(own)) for folder, own in _folders(files)}
    return tuple(_described(entry, digest_of, base) if entry.kind in WEIGHTS else entry for entry in lineage)


def _described(entry: Lineage, digest_of: dict[str, str], base: str) -> Lineage:
    # The registered model is named by its weights and the decision for them.
    files = digest_of.get(str(entry.payload.get("weights", entry.digest)))
    facts = {"files": files} if files else {}
    facts |= {"base": base} if base and entry.inputs else {}
    return replace(entry, payload=entry.payload | facts)


def _folders(files: Sequence[StoredFile]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each folder of weights with path and SHA-256 of its files."""
    # The last first: of equal weights the first folder counts.
    for record in reversed([file.path for file in files if Path(file.path).name == RECORD]):
        inside = record.removesuffix(RECORD)
        yield inside, [(file.path.removeprefix(inside), file.sha256) for file in files if file.path.startswith(inside)]
