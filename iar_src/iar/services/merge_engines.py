"""What makes the candidates of a run: the engine that its run file names, with the settings there."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from iar.config import RunFile
from iar.errors import PermanentError
from iar.methods.merge_grid import Recipe
from iar.records import Candidate
from iar.services.checkpoints import recorded_digest
from iar.services.merge_mergekit import merge_with_mergekit
from iar.services.merge_stream import MergeSettings, ReportProgress, merge_candidates

ENGINES = {"stream": merge_candidates, "mergekit": merge_with_mergekit}
GB = 1e9


def parent_digests(run_file: RunFile, base: Path, tuned: Path) -> dict[str, str]:
    """Return the digest of the weights of each parent by role: base, tuned, and tuned_too_1, ..."""
    others = enumerate(run_file.recover.tuned_too, start=1)
    further = {f"tuned_too_{number}": recorded_digest(Path(folder)) for number, folder in others}
    return {"base": recorded_digest(base), "tuned": recorded_digest(tuned)} | further


def make_candidates(
    run_file: RunFile, base: Path, tuned: Path, recipes: Sequence[Recipe], out: Path, on_progress: ReportProgress
) -> list[Candidate]:
    """Write one folder a recipe, `out/<recipe id>`, and return what came out, in the order of the recipes."""
    recover, platform = run_file.recover, run_file.platform
    settings = MergeSettings(
        recover.shard_gb * GB, platform.merge_threads, platform.merge_device, tuple(map(Path, recover.tuned_too))
    )
    parents = parent_digests(run_file, base, tuned)
    return ENGINES[recover.engine](base, tuned, recipes, out, parents, on_progress, settings)


def rebuild_candidates(
    run_file: RunFile,
    base: Path,
    tuned: Path,
    wanted: Sequence[Candidate],
    out: Path,
    artifact: Path,
    on_progress: ReportProgress,
) -> None:
    """Make candidates of an artifact again, as `out/<id>`.

    Raises PermanentError for one that has other bits than were recorded.
    """
    made = make_candidates(run_file, base, tuned, [recipe_of(one) for one in wanted], out, on_progress)
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
