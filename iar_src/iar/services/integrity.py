"""`iar lineage verify`: the registry's chains, and behind them the files: bytes, anchors and decontamination."""

import json
from collections.abc import Iterator
from pathlib import Path

from iar.config import RunFile
from iar.errors import IarError
from iar.methods.provenance import ROWS
from iar.records import Anchor, Chunk, Document, read_records
from iar.services.decontamination import read_checks, unchecked
from iar.services.evaluations import GENERAL, OWN
from iar.services.lineage_examples import example_faults
from iar.services.published import replaced
from iar.services.registry import Registry, short_id
from iar.services.registry_heads import kept_heads
from iar.services.workspace import CHECKS, Ref, damaged, read_manifest

# Rows of a dataset, which the manifest does not name one by one, and what is in no file.
WITHOUT_ARTIFACT = ROWS | {"source", "document", "verifier", "promotion", "agent"}


def verify_all(registry: Registry, state: Path, heads: list[str]) -> list[str]:
    """Return one line for each fault of the registry, and of every artifact and run in the state folder."""
    return [
        *registry.verify([*kept_heads(state), *heads]),
        *(line for folder in _artifacts(state) for line in check_artifact(folder)),
        *replaced(registry, _artifacts(state)),
        *_reports(state),
    ]


def verify_entry(registry: Registry, state: Path, id_: str) -> list[str]:
    """Return one line for each fault of an entry, of what it was made from, and of the artifacts in which it stands.

    Raises UserError for an unknown id.
    """
    entry = registry.find(id_)
    shown = short_id(entry.kind, entry.digest)
    folders = [folder for folder in _artifacts(state) if entry.digest in (folder / "manifest.json").read_text("utf-8")]
    faults = registry.verify_entry(entry.digest)
    if not folders and entry.kind not in WITHOUT_ARTIFACT:
        return [*faults, f"{shown}: no artifact in {state} holds it; give its state folder with --state"]
    faults += (line for folder in folders for line in check_artifact(folder))
    return [*faults, *replaced(registry, folders)]


def check_artifact(folder: Path) -> Iterator[str]:
    """Yield the faults of an artifact: files that changed, anchors that are not where they should be."""
    try:
        manifest = read_manifest(folder)
    except (ValueError, TypeError, KeyError):
        yield f"{folder}: its manifest cannot be read"
        return
    for stored in damaged(folder, manifest, verify=True):
        yield f"{folder / stored.path}: not the bytes that were written (SHA-256 {stored.sha256[:12]} then)"
    yield from example_faults(folder, manifest)
    if (folder / "anchors.jsonl").is_file():
        yield from _anchors(folder)


def _artifacts(state: Path) -> list[Path]:
    return sorted(path.parent for path in (state / "artifacts").glob("*/*/manifest.json"))


def _anchors(folder: Path) -> Iterator[str]:
    """Yield the chunks and anchors that do not stand in their document at their offsets."""
    try:
        texts = {document.id: document.text for document in read_records(folder / "documents.jsonl", Document)}
        document_of: dict[str, str] = {}
        for chunk in read_records(folder / "chunks.jsonl", Chunk):
            document_of[chunk.id] = chunk.document_id
            if texts.get(chunk.document_id, "")[chunk.start : chunk.end] != chunk.text:
                yield f"{folder}: chunk {chunk.id} is not its document's text from {chunk.start} to {chunk.end}"
        for anchor in read_records(folder / "anchors.jsonl", Anchor):
            text = texts.get(document_of.get(anchor.chunk_id, ""), "")
            if text[anchor.start : anchor.end] != anchor.text:
                yield f"{folder}: anchor {anchor.text!r} of {anchor.chunk_id} is not at {anchor.start} to {anchor.end}"
    except (IarError, OSError) as error:
        yield f"{folder}: {error}"


def _reports(state: Path) -> Iterator[str]:
    """Yield the evaluations that a run's report names and its data was not checked against."""
    for path in sorted((state / "runs").glob("*/run.json")):
        run_file = RunFile.model_validate(json.loads(path.read_text(encoding="utf-8"))["run_file"])
        data = _artifact_of(path.parent, "qa-build")
        if data is None or _artifact_of(path.parent, "register") is None:
            continue
        if not (data / CHECKS).is_file():
            yield f"run {path.parent.name}: {data} records no decontamination"
            continue
        for name, why in unchecked(read_checks(data), [*OWN, *GENERAL, *run_file.qa_build.evals]).items():
            yield f"run {path.parent.name}: its report names {name}, but its data was not checked against it ({why})"


def _artifact_of(run: Path, task: str) -> Path | None:
    marker = run / "tasks" / f"{task}.json"
    if not marker.is_file():
        return None
    return Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"]).path
