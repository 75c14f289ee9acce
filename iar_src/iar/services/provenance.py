"""The provenance of one entry, read from the registry, and the files of a dataset, read from the state folder."""

from dataclasses import replace
from pathlib import Path

from iar.errors import UserError
from iar.methods.export_croissant import DataFile
from iar.methods.provenance import Provenance
from iar.records import Lineage, SourceFacts, read_records
from iar.services.registry import Registry, short_id
from iar.services.registry_pages import activities
from iar.services.workspace import MANIFEST, Manifest, read_manifest

DESCRIBED = ("dataset", "checkpoint", "candidate", "scores", "decision")
"""Kinds whose payload an export shows; of the others, of which there may be a million, the name is enough."""


def provenance_of(registry: Registry, id_: str) -> Provenance:
    """Return the entry that an id names with all that is upstream of it. Raises UserError as Registry.find does."""
    subject = registry.find(id_)
    links = registry.upstream(subject.digest)
    labels = registry.labels({subject.digest} | {digest for link in links for digest in (link.product, link.input)})
    entries = {
        digest: replace(registry.find(digest), inputs=()) if kind in DESCRIBED else Lineage(kind, digest, name, {})
        for digest, (kind, name) in labels.items()
    }
    known = activities(registry, (link.activity for link in links))
    return Provenance(entries[subject.digest], entries, links, known, _scores(registry, subject))


def _scores(registry: Registry, subject: Lineage) -> tuple[Lineage, ...]:
    """Return the evaluations of a model, or of the weights of a registered model, by name."""
    models = {subject.digest} | {digest for role, digest in subject.inputs if role == "weights"}
    found = {
        edge.product
        for model in models
        for edge in registry.downstream(model)
        if edge.role == "evaluated" and edge.input == model
    }
    return tuple(sorted((registry.find(digest) for digest in found), key=lambda one: (one.name, one.digest)))


def dataset_folder(state: Path, dataset: Lineage) -> Path:
    """Return the finished artifact that holds a dataset's files. Raises UserError where the state folder has none."""
    for manifest_path in sorted(state.glob(f"artifacts/*/*/{MANIFEST}")):
        if _holds(read_manifest(manifest_path.parent), dataset.digest):
            return manifest_path.parent
    raise UserError(
        f"{short_id(dataset.kind, dataset.digest)} ({dataset.name}): no artifact in {state} holds its files; name the "
        "state folder of its run with --state, or build it again"
    )


def _holds(manifest: Manifest, digest: str) -> bool:
    makes = any(entry.digest == digest and entry.kind == "dataset" for entry in manifest.outcome.lineage)
    # The dataset of one split is named by its file.
    return (makes and manifest.stage == "qa_build") or any(file.sha256 == digest for file in manifest.files)


def dataset_files(folder: Path, dataset: Lineage) -> list[DataFile]:
    """Return the files of a dataset as the manifest has them; of a dataset that is one file, this one."""
    files = [DataFile(file.path, file.size, file.sha256) for file in read_manifest(folder).files]
    return [file for file in files if file.sha256 == dataset.digest] or files


def document_licences(folder: Path) -> list[str]:
    """Return the licences that the dataset's documents were found with, each once; [] where none is known."""
    sources = folder / "sources.jsonl"
    if not sources.is_file():
        return []
    return sorted({facts.licence for facts in read_records(sources, SourceFacts)} - {""})
