"""Candidates of other tasks as this one needs them: merged again for their facts and distances, and not written.

Where the grid is spread over tasks none has the weights of all, and fetching them takes longer than to merge them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, sqrt
from pathlib import Path

from iar.methods.merge_facts import Sums
from iar.methods.merge_grid import Recipe
from iar.records import Candidate
from iar.services.checkpoints import TensorInfo
from iar.services.merge_stream import (
    MergeSettings,
    Parents,
    ReportProgress,
    examine_tensor,
    mapped_parents,
    merge_block,
    one_torch_thread,
    stream,
)
from iar.services.merge_writers import candidate_of


@dataclass
class Unwritten:
    """Takes the blocks of a recipe and keeps their sums alone."""

    recipe: Recipe
    sums: dict[str, Sums] = field(default_factory=dict)

    def append(self, data: memoryview) -> None:
        """Let the bytes go."""


def facts_of(
    base: Path, tuned: Path, recipes: Sequence[Recipe], settings: MergeSettings, on_progress: ReportProgress
) -> list[Candidate]:
    """Return the records of candidates as far as they can be known without writing any: without digests."""
    if not recipes:
        return []
    mapped, layout = mapped_parents(base, tuned, recipes, settings)
    takers = [Unwritten(recipe) for recipe in recipes]
    with one_torch_thread():
        stream(mapped, layout, takers, settings, on_progress)
    return [candidate_of(taker.recipe, "", taker.sums) for taker in takers]


def recipe_distance(base: Path, tuned: Path, one: Recipe, other: Recipe, settings: MergeSettings) -> float:
    """Return how far the candidates of two recipes are apart, in units of the distance between the parents."""
    pair = (one, other)
    mapped, layout = mapped_parents(base, tuned, pair, settings)
    apart = delta = 0.0
    with one_torch_thread():
        for info in layout:
            apart_here, delta_here = _tensor_distance(mapped, info, pair, settings.device)
            apart, delta = apart + apart_here, delta + delta_here
            mapped.release(info.name)
    return sqrt(apart / delta) if delta else inf


def _tensor_distance(parents: Parents, info: TensorInfo, pair: Sequence[Recipe], device: str) -> tuple[float, float]:
    """Return the squared distance of two candidates in one tensor, and that of the parents."""
    from iar.methods.merge_blocks import BLOCK_ELEMENTS
    from iar.methods.merging import draw_seed

    statistics = examine_tensor(parents, pair, info)
    merge = partial(merge_block, parents, pair, statistics, info, draw_seed(pair), device)
    apart = delta = 0.0
    for start in range(0, info.elements, BLOCK_ELEMENTS):
        (one, sums), (other, _) = merge(slice(start, min(start + BLOCK_ELEMENTS, info.elements)))
        difference = one.float() - other.float()
        apart, delta = apart + float(difference @ difference), delta + sums.delta
    return apart, delta
