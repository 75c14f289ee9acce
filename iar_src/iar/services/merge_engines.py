"""What makes the candidates of a run: the engine that its run file names, with the settings there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from iar.config import RunFile
from iar.errors import PermanentError
from iar.methods.merge_grid import SETS, SEVERAL, Recipe
from iar.records import Candidate
from iar.services.checkpoints import recorded_digest
from iar.services.merge_mergekit import merge_with_mergekit
from iar.services.merge_stream import MergeSettings, ReportProgress, merge_candidates

ENGINES = {"stream": merge_candidates, "mergekit": merge_with_mergekit}
GB = 1e9
TUNED_TOO, EARLIER = "tuned_too_", "earlier_"


@dataclass(frozen=True)
class ParentFolders:
    """The checkpoints that the candidates of a run are merged from: theta_0, align's, and what the model was after each
    earlier document set, the oldest first. Those of `recover.tuned_too` stand in the run file."""

    base: Path
    tuned: Path
    earlier: tuple[Path, ...] = ()


def parent_digests(run_file: RunFile, parents: ParentFolders) -> dict[str, str]:
    """Return the digest of the weights of each parent by role: base, tuned, and tuned_too_1, ..., earlier_1, ..."""
    recover = run_file.recover
    groups = {TUNED_TOO: map(Path, recover.tuned_too), EARLIER: parents.earlier if recover.set_weights else ()}
    further = {
        f"{role}{number}": recorded_digest(folder)
        for role, folders in groups.items()
        for number, folder in enumerate(folders, start=1)
    }
    return {"base": recorded_digest(parents.base), "tuned": recorded_digest(parents.tuned)} | further


def own_parents(operator: str, parents: Mapping[str, str]) -> dict[str, str]:
    """Return those of all parents that an operator merges."""
    others = {TUNED_TOO: operator in SEVERAL, EARLIER: operator == SETS}
    return {
        role: digest
        for role, digest in parents.items()
        if all(merges or not role.startswith(other) for other, merges in others.items())
    }


def make_candidates(
    run_file: RunFile, parents: ParentFolders, recipes: Sequence[Recipe], out: Path, on_progress: ReportProgress
) -> list[Candidate]:
    """Write one folder a recipe, `out/<recipe id>`, and return what came out, in the order of the recipes."""
    recover, platform = run_file.recover, run_file.platform
    settings = MergeSettings(
        recover.shard_gb * GB,
        platform.merge_threads,
        platform.merge_device,
        tuple(map(Path, recover.tuned_too)),
        parents.earlier,
    )
    digests = parent_digests(run_file, parents)
    return ENGINES[recover.engine](parents.base, parents.tuned, recipes, out, digests, on_progress, settings)


def rebuild_candidates(
    run_file: RunFile,
    parents: ParentFolders,
    wanted: Sequence[Candidate],
    out: Path,
    artifact: Path,
    on_progress: ReportProgress,
) -> None:
    """Make candidates of an artifact again, as `out/<id>`.

    Raises PermanentError for one that has other bits than were recorded.
    """
    made = make_candidates(run_file, parents, [recipe_of(one) for one in wanted], out, on_progress)
    for new, recorded in zip(made, wanted, strict=True):
        if new.digest != recorded.digest:
            raise PermanentError(
                f"{recorded.id}: rebuilt with weights {new.digest[:12]}, recorded are {recorded.digest[:12]}: it was "
                "made by another version of the code or of torch, or on another platform.merge_device; delete "
                f"{artifact} and run the run file again to make and judge all of them anew"
            )


def recipe_of(candidate: Candidate) -> Recipe:
    """Return what a candidate was made by."""
    return Recipe(**{field.name: getattr(candidate, field.name) for field in fields(Recipe)})
