"""Which training examples a checkpoint has seen, and which of them were made of a document, chunk or question."""

from collections.abc import Iterator
from pathlib import Path

from iar.errors import PermanentError, UserError
from iar.methods.merkle import merkle_root
from iar.records import read_records
from iar.services.example_sets import EXAMPLES, KIND, SEEN_AS, ExampleUse
from iar.services.registry import Registry, short_id
from iar.services.workspace import MANIFEST, Manifest, read_manifest

TEXTS = ("document", "chunk", "qa", "retelling")


def examples_of(registry: Registry, state: Path, id_: str, about: str = "") -> Iterator[ExampleUse]:
    """Yield the examples of a checkpoint, or of a set of them; `about`: those made of this document, chunk or question.

    Raises UserError for anything else, and where the state folder does not hold the list.
    """
    entry = registry.find(id_)
    sets = [entry.digest] if entry.kind == KIND else [one for role, one in entry.inputs if role == SEEN_AS]
    if not sets:
        raise UserError(f"{short_id(entry.kind, entry.digest)}: has no training examples on record; give a checkpoint")
    wanted = _ids(registry, about) if about else None
    for digest in sets:
        for one in read_records(_folder(state, digest) / EXAMPLES, ExampleUse):
            # A passage longer than the sequence stands there in parts: ID/1, ID/2.
            if wanted is None or {one.id, one.source_id.partition("/")[0]} & wanted:
                yield one


def example_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line where an artifact's list of examples is not the set that was recorded."""
    path = folder / EXAMPLES
    for one in manifest.outcome.lineage:
        if one.kind == KIND and _root(path) != one.payload["merkle_root"]:
            yield f"{path}: does not list the {one.payload[KIND]} examples of {short_id(one.kind, one.digest)}"


def _root(path: Path) -> str:
    """Return the Merkle root over the examples that a file lists, "" where there is no such list."""
    try:
        return merkle_root(one.digest for one in read_records(path, ExampleUse))
    except (OSError, PermanentError):
        return ""


def _folder(state: Path, digest: str) -> Path:
    for path in sorted(state.glob(f"artifacts/*/*/{EXAMPLES}")):
        made = read_manifest(path.parent).outcome.lineage if (path.parent / MANIFEST).is_file() else ()
        if any(one.digest == digest for one in made):
            return path.parent
    raise UserError(f"{short_id(KIND, digest)}: no artifact in {state} lists them; name the run's folder with --state")


def _ids(registry: Registry, about: str) -> set[str]:
    """Return the ids by which examples name an entry and the texts made of it."""
    entry = registry.find(about)
    if entry.kind not in TEXTS:
        raise UserError(f"--of {about}: a {entry.kind}; give a document, chunk, question or retelling")
    own = registry.entities(registry.products([entry.digest]) | {entry.digest})
    return {str(one.payload["id"]) for one in own if one.kind in TEXTS and "id" in one.payload}
