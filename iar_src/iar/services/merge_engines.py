"""What makes the candidates of a run: the engine that its run file names, with the settings there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from iar.config import RunFile
from iar.errors import PermanentError
from iar.methods.merge_grid import SETS, SEVERAL, Recipe
from iar.records import Candidate
from iar.services.checkpoints import recorded_digest
from iar.services.merge_duplicates import mark_duplicates, written_distance
from iar.services.merge_mergekit import merge_with_mergekit
from iar.services.merge_stream import MergeSettings, ReportProgress, merge_candidates
from iar.services.merge_unwritten import facts_of, recipe_distance

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
    settings, digests = _settings(run_file, parents), parent_digests(run_file, parents)
    engine = ENGINES[run_file.recover.engine]
    return engine(parents.base, parents.tuned, recipes, out, digests, on_progress, settings)


def mark_duplicates_in_grid(
    run_file: RunFile,
    parents: ParentFolders,
    recipes: Sequence[Recipe],
    made: Sequence[Candidate],
    out: Path,
    on_progress: ReportProgress,
) -> list[Candidate]:
    """Return the candidates that one task made, each that is the same model as an earlier one of the grid marked so.

    `recipes` are the grid, in whose order `made` are; their weights are in `out`. Those of other tasks are merged
    again, unwritten; mergekit, which only writes, compares the task's own alone.
    """
    base, tuned, settings = parents.base, parents.tuned, _settings(run_file, parents)
    known, by_id = {one.id: one for one in made}, {recipe.id: recipe for recipe in recipes}

    def computed(one: Candidate, other: Candidate) -> float:
        return recipe_distance(base, tuned, by_id[one.id], by_id[other.id], settings)

    distance = written_distance(out, base, tuned) if run_file.recover.engine == "mergekit" else computed
    if distance is computed:
        last = max((number for number, recipe in enumerate(recipes) if recipe.id in known), default=0)
        others = [recipe for recipe in recipes[:last] if recipe.id not in known]
        known |= {one.id: one for one in facts_of(base, tuned, others, settings, on_progress)}
    return mark_duplicates([known[name] for name in by_id if name in known], distance, run_file.recover.same_within)


def _settings(run_file: RunFile, parents: ParentFolders) -> MergeSettings:
    recover, platform = run_file.recover, run_file.platform
    further = tuple(map(Path, recover.tuned_too))
    return MergeSettings(recover.shard_gb * GB, platform.merge_threads, platform.merge_device, further, parents.earlier)


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
