"""Candidates whose weights are not kept: released when a run is over, rebuilt bit for bit where they are wanted again.

A released candidate keeps its folder, with record and facts, without its weights; `released.json` of the artifact
names the missing files. It is written before the first of them goes, and again when rebuilt ones are back, so a kill
at any moment leaves files that nobody misses, never a missing file that nobody knows of.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.merge_grid import SETS, SEVERAL
from iar.records import Candidate, read_records, write_json
from iar.services.earlier_sets import ROLE, EarlierSets
from iar.services.merge_engines import ParentFolders, rebuild_candidates
from iar.services.merge_stream import ReportProgress
from iar.services.workspace import MANIFEST, RELEASED, Workspace, read_manifest, released, stored_files

if TYPE_CHECKING:
    from iar.services.registry import Registry

CANDIDATES = "candidates.jsonl"


@contextmanager
def weights_present(
    artifact: Path, wanted: Sequence[Candidate], run_file: RunFile, state: Path, report: ReportProgress
) -> Iterator[None]:
    """Have the weights of candidates in their folders, rebuilt in one pass where they were released, until the end.

    Raises UserError where a parent is gone from the state folder, PermanentError where other bits come out.
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
        candidates = list(read_records(artifact / CANDIDATES, Candidate))
        known = registry.labels([one.digest for one in candidates])
        going = [one for one in candidates if one.digest in known and one.id != pick and one.operator not in SEVERAL]
        paths = {path for one in going for path in _weights(artifact, one)}
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


def _weights(artifact: Path, candidate: Candidate) -> set[str]:
    """Return the paths of a candidate's weights in an artifact, there or not."""
    beside = f"{candidate.id}/"
    return {
        file.path
        for file in read_manifest(artifact).files
        if file.path.startswith(beside) and file.path.endswith(".safetensors")
    }


def _absent(artifact: Path, wanted: Sequence[Candidate]) -> list[Candidate]:
    gone = released(artifact)
    return [one for one in wanted if gone and _weights(artifact, one) & gone]


def _restore(
    artifact: Path, missing: Sequence[Candidate], run_file: RunFile, workspace: Workspace, report: ReportProgress
) -> None:
    """Rebuild candidates aside, move their weights into place, then take them off the list of the released."""
    inputs = read_manifest(artifact).key_parts["inputs"]
    base, tuned = (_parent(workspace, inputs[role], artifact, role) for role in ("base", "tuned"))
    of_sets = any(one.operator == SETS for one in missing)
    before = EarlierSets(_parent(workspace, inputs[ROLE], artifact, ROLE) if of_sets else None)
    parents = ParentFolders(base, tuned / "checkpoint", tuple(before.checkpoints))
    aside = workspace.state / "work" / f"rebuild-{artifact.parent.name}-{artifact.name}"
    shutil.rmtree(aside, ignore_errors=True)
    rebuild_candidates(run_file, parents, missing, aside, artifact, report)
    stored_files(aside)  # forced to disk before they count
    for one in missing:
        for path in _weights(artifact, one):
            (aside / path).replace(artifact / path)
    back = {path for one in missing for path in _weights(artifact, one)}
    write_json(artifact / RELEASED, sorted(released(artifact) - back))
    shutil.rmtree(aside)


def _parent(workspace: Workspace, content: str, artifact: Path, role: str) -> Path:
    folder = workspace.holding(content)
    if folder is None:
        raise UserError(
            f"{artifact}: candidates were released, and their parent '{role}' is gone from {workspace.state}; delete "
            "the folder and run the run file again to make them anew"
        )
    return folder
