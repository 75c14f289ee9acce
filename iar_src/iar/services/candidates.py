"""Candidates whose weights are not kept: released when a run is over, rebuilt bit for bit where they are wanted again.

A released candidate keeps its folder, with record and facts, without its weights; `released.json` of the artifact
names the missing files. It is written before the first of them goes, and again when rebuilt ones are back, so a kill
at any moment leaves files that nobody misses, never a missing file that nobody knows of. So it is in a store.
"""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from iar.config import RunFile
from iar.errors import IarError, UserError
from iar.methods.merge_grid import SETS, SEVERAL
from iar.records import Candidate, from_json, read_records, write_json
from iar.services.checkpoints import read_json
from iar.services.earlier_sets import ROLE, EarlierSets
from iar.services.merge_engines import ParentFolders, rebuild_candidates
from iar.services.merge_stream import ReportProgress
from iar.services.store import Store, StoredRef, is_stored
from iar.services.store_release import read_stored, release_stored, stored_with
from iar.services.workspace import (
    MANIFEST,
    RELEASED,
    Manifest,
    Ref,
    Workspace,
    read_manifest,
    released,
    stored_files,
)

if TYPE_CHECKING:
    from iar.services.registry import Registry

CANDIDATES, SELECTION = "candidates.jsonl", "selection.json"
# By the role of a parent, the task that makes it.
MADE_BY = {"base": "base-model", "tuned": "align", ROLE: "earlier-run"}
Input = TypeVar("Input")


@contextmanager
def weights_present(
    artifact: Path, wanted: Sequence[Candidate], run_file: RunFile, state: Path, report: ReportProgress
) -> Iterator[None]:
    """Have the weights of candidates in their folders, rebuilt in one pass where they were released, until the end.

    Raises UserError where a parent is gone from state folder and store, PermanentError where other bits come out.
    """
    descriptor = os.open(artifact, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        while _absent(artifact, wanted):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if missing := _absent(artifact, wanted):
                _restore(artifact, missing, run_file, Workspace(state), report)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def release_all_but_pick(
    inputs: Mapping[str, str], workspace: Workspace, store: Store | None, registry: "Registry"
) -> None:
    """Remove the weights of all candidates but the pick, here and in the store; `inputs` are references by role."""
    stored = {role: StoredRef.parse(text) for role, text in inputs.items() if is_stored(text)}
    folders = {role: workspace.artifact(ref.task, ref.key) for role, ref in stored.items()}
    folders |= {role: Ref.parse(text).path for role, text in inputs.items() if role not in stored}
    # Where only the store has it, nothing is here.
    if selection := read_json(folders["selector"] / SELECTION) if "selector" in folders else {}:
        parents = [folders[role] for role in MADE_BY if role in folders]
        release(_of_candidates(folders), selection["pick"], parents, registry)
    if store and "selector" in stored:
        try:
            _release_stored(_of_candidates(stored), stored["selector"], store, registry)
        except IarError as error:  # the run is done; the next of this run file tries again
            print(f"weights of candidates stay in the store: {error}", file=sys.stderr)


def _of_candidates(inputs: Mapping[str, Input]) -> list[Input]:
    return [one for role, one in inputs.items() if role.startswith("candidates")]


def release(artifacts: Iterable[Path], pick: str, parents: Iterable[Path], registry: "Registry") -> int:
    """Remove the weights of all candidates but the pick; return how many bytes went.

    `parents` are the artifacts of theta_0, align and, in a run on another, of the earlier run.

    A candidate stays where it could not be rebuilt from the state folder alone: its recipe or hash is not in the
    registry, a parent is not there, or it was merged from checkpoints elsewhere too. So does what a task is reading.
    """
    if not all((folder / MANIFEST).is_file() for folder in parents):
        return 0
    return sum(_release(artifact, pick, registry) for artifact in artifacts if (artifact / CANDIDATES).is_file())


def _release(artifact: Path, pick: str, registry: "Registry") -> int:
    descriptor = os.open(artifact, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        going = _going(list(read_records(artifact / CANDIDATES, Candidate)), pick, registry)
        paths = {path for one in going for path in _weights(read_manifest(artifact), one)}
        if paths - released(artifact):
            write_json(artifact / RELEASED, sorted(paths | released(artifact)))
        present = [artifact / path for path in sorted(paths) if (artifact / path).is_file()]
        size = sum(path.stat().st_size for path in present)
        for path in present:
            path.unlink()
        return size
    except BlockingIOError:  # a task reads them; the next run of this run file releases them
        return 0
    finally:
        os.close(descriptor)


def _release_stored(artifacts: Iterable[StoredRef], selector: StoredRef, store: Store, registry: "Registry") -> None:
    """Remove the weights of all candidates but the pick from a store, which keeps what they are rebuilt from."""
    pick = json.loads(read_stored(store, selector, SELECTION))["pick"]
    for ref in artifacts:
        lines = read_stored(store, ref, CANDIDATES).splitlines()
        going = _going([from_json(Candidate, json.loads(line)) for line in lines], pick, registry)
        release_stored(store, ref, {path for one in going for path in _weights(store.manifest(ref), one)})


def _going(candidates: Sequence[Candidate], pick: str, registry: "Registry") -> list[Candidate]:
    """Return the candidates whose weights can be made again from what is kept, but the pick."""
    known = registry.labels([one.digest for one in candidates])
    return [one for one in candidates if one.digest in known and one.id != pick and one.operator not in SEVERAL]


def _weights(manifest: Manifest, candidate: Candidate) -> set[str]:
    """Return the paths of a candidate's weights in an artifact, there or not."""
    beside = f"{candidate.id}/"
    return {file.path for file in manifest.files if file.path.startswith(beside) and file.path.endswith(".safetensors")}


def _absent(artifact: Path, wanted: Sequence[Candidate]) -> list[Candidate]:
    gone = released(artifact)
    return [one for one in wanted if gone and _weights(read_manifest(artifact), one) & gone]


def _restore(
    artifact: Path, missing: Sequence[Candidate], run_file: RunFile, workspace: Workspace, report: ReportProgress
) -> None:
    """Rebuild candidates aside, move their weights into place, then take them off the list of the released."""
    manifest, store = read_manifest(artifact), Store.of(run_file, workspace)
    inputs = manifest.key_parts["inputs"]

    def parent(role: str) -> Path:
        return _parent(workspace, store, inputs[role], artifact, role, report)

    base, tuned = parent("base"), parent("tuned")
    of_sets = any(one.operator == SETS for one in missing)
    before = EarlierSets(parent(ROLE) if of_sets else None)
    parents = ParentFolders(base, tuned / "checkpoint", tuple(before.checkpoints))
    aside = workspace.state / "work" / f"rebuild-{artifact.parent.name}-{artifact.name}"
    shutil.rmtree(aside, ignore_errors=True)
    rebuild_candidates(run_file, parents, missing, aside, artifact, report)
    stored_files(aside)  # forced to disk before they count
    for one in missing:
        for path in _weights(manifest, one):
            (aside / path).replace(artifact / path)
    back = {path for one in missing for path in _weights(manifest, one)}
    write_json(artifact / RELEASED, sorted(released(artifact) - back))
    shutil.rmtree(aside)


def _parent(
    workspace: Workspace, store: Store | None, content: str, artifact: Path, role: str, report: ReportProgress
) -> Path:
    folder = workspace.holding(content)
    if folder is None and store:
        folder = stored_with(store, MADE_BY[role], content, report)
    if folder is None:
        raise UserError(
            f"{artifact}: candidates were released, and their parent '{role}' is gone from {workspace.state}; delete "
            "the folder and run the run file again to make them anew"
        )
    return folder
