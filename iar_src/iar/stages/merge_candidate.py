"""Recover: theta_0 and theta_IA -> the merged candidates of the grid, or of one shard of it."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from iar.config import RunFile
from iar.errors import PermanentError, UserError
from iar.methods.merge_grid import Recipe, grid
from iar.records import Candidate, DeltaFacts, Lineage, Outcome, from_json, to_json, write_records
from iar.services.checkpoints import read_json, weights_digest
from iar.services.delta_facts import write_deltas
from iar.services.earlier_sets import EarlierSets
from iar.services.fisher import read_information
from iar.services.merge_engines import (
    ParentFolders,
    make_candidates,
    mark_duplicates_in_grid,
    own_parents,
    parent_digests,
    recipe_of,
)
from iar.services.merge_writers import remove_parts
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write one model folder a candidate and, last, `candidates.jsonl`; shard i of n takes every n-th recipe.

    Candidates that an earlier, killed try finished are kept when their weights still have the recorded digest.
    In a run on another, the first shard writes `deltas.jsonl` too: how the changes of the document sets relate.
    """
    information = read_information(inputs.get("fisher"))
    everything = grid(run_file.recover, context.seed, information)
    recipes = everything[context.shard - 1 :: context.shards]
    base, tuned, sets = inputs["base"], inputs["tuned"] / "checkpoint", EarlierSets.of(inputs)
    folders = ParentFolders(base, tuned, tuple(sets.checkpoints))
    parents = parent_digests(run_file, folders)

    remove_parts(out)
    finished = {recipe.id: finished_candidate(out / recipe.id, recipe, parents) for recipe in recipes}
    missing = [recipe for recipe in recipes if not finished[recipe.id]]
    merged = make_candidates(run_file, folders, missing, out, context.progress.update)

    by_id = {candidate.id: candidate for candidate in [*filter(None, finished.values()), *merged]}
    made = [by_id[recipe.id] for recipe in recipes]
    candidates = mark_duplicates_in_grid(run_file, folders, everything, made, out, context.progress.update)
    changes = write_deltas(out, [base, *sets.checkpoints, tuned]) if sets.folder and context.shard == 1 else []
    write_records(out / "candidates.jsonl", candidates)
    return with_deltas(outcome(candidates, parents, run_file.recover.tuned_too), changes)


def finished_candidate(folder: Path, recipe: Recipe, parents: dict[str, str]) -> Candidate | None:
    """Return the candidate in `folder` if it is whole and of this recipe and these parents; else remove the folder."""
    if not folder.exists():
        return None
    try:
        record = read_json(folder / "checkpoint.json")
        candidate = from_json(Candidate, record["candidate"])
        same_recipe = recipe_of(candidate) == recipe
        if same_recipe and record["parents"] == parents and weights_digest(folder) == candidate.digest:
            return candidate
    except (KeyError, TypeError, UserError, PermanentError):
        pass  # a torn record is a torn candidate
    shutil.rmtree(folder)
    return None


def outcome(candidates: Sequence[Candidate], parents: dict[str, str], tuned_too: Sequence[str] = ()) -> Outcome:
    """Return numbers, a table, and a registry entry for each checkpoint from elsewhere and each set of weights."""
    distinct = [candidate for candidate in candidates if not candidate.duplicate_of]
    by_digest = {candidate.digest: candidate for candidate in reversed(candidates)}
    recorded = [candidate for candidate in candidates if by_digest[candidate.digest] is candidate]
    rows = [
        f"| {c.id} | {c.changed_share:.1%} | {c.distance_to_base:.3f} | {c.distance_to_tuned:.3f} "
        f"| {_duplicate(c)} | `{c.digest[:12]}` |"
        for c in candidates
    ]
    head = ["| candidate | changed | to theta_0 | to theta_IA | duplicate of | weights |", "|---|---|---|---|---|---|"]
    note = "\n\nDistances in units of the one between theta_0 and theta_IA; changed: share of weights unlike theta_0."
    further = enumerate(tuned_too, start=1)
    elsewhere = [Lineage("checkpoint", parents[f"tuned_too_{n}"], folder, {"folder": folder}) for n, folder in further]
    return Outcome(
        metrics={"candidates": float(len(candidates)), "distinct": float(len(distinct))},
        markdown="\n".join(head + rows) + note,
        lineage=(
            *elsewhere,
            *(Lineage("candidate", c.digest, c.id, to_json(c), _inputs(c, parents)) for c in recorded),
        ),
    )


def _inputs(candidate: Candidate, parents: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(own_parents(candidate.operator, parents).items())


def with_deltas(outcome: Outcome, changes: Sequence[DeltaFacts]) -> Outcome:
    """Add to the report of a merge how the changes of the document sets relate, where it compared them."""
    if not changes:
        return outcome
    norms, cosines = changes[0].norms, changes[0].cosines
    pairs = [f"{one}_{two}" for one, two in combinations(range(1, len(norms) + 1), 2)]
    figures = {f"delta_norm/{number}": norm for number, norm in enumerate(norms, 1)}
    figures |= {f"delta_cosine/{pair}": cosine for pair, cosine in zip(pairs, cosines, strict=True)}
    told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return replace(outcome, metrics=outcome.metrics | figures, markdown=f"{outcome.markdown}\n\n{told}")


def _duplicate(candidate: Candidate) -> str:
    distance = candidate.distance_to_original
    return candidate.duplicate_of + (f" to rounding ({distance:.1g})" if distance else "")
