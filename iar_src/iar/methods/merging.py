"""Merge operators on one tensor pair, theta_0 (before training) and theta_1 (after), in fp32.

SLERP (Shoemake 1985), Task Arithmetic (Ilharco et al. 2212.04089), TIES (Yadav et al. 2306.01708) and DARE
(Yu et al. 2311.03099), with lambda = 1; task arithmetic with a weight a transformer block, a tensor (fisher.py) or a
document set; over several tuned checkpoints DARE-TIES and the soup (Wortsman et al. 2203.05482); outside the grid FAPM
(fapm.py), a baseline. Each operator is elementwise once a few statistics of the whole pair are known, so a large tensor
is merged block by block and gives the same bits as the tensor at once.

Tensors may have any shape; the two of a pair have the same one and may be of any float dtype. Products and sums
are separate operations, never fused: bits do not depend on the machine's vector unit or number of threads.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from iar.methods.fapm import Kept, kept_changes, pruned
from iar.methods.merge_blocks import BLOCK_ELEMENTS, Block, paired_blocks, read_block, uniform_draws
from iar.methods.merge_facts import tensor_place
from iar.methods.merge_grid import Recipe
from iar.methods.trimming import Cut, trim, trim_cuts

SMALLEST_NORM = 1e-8
COLLINEAR_COSINE = 0.9995  # beyond it, either sign, the arc is a line (the same bound as mergekit's)


@dataclass(frozen=True)
class PairStatistics:
    """What the operators need to know of a whole tensor pair: SLERP its cosine, TIES a cut for each density,
    FAPM what each share keeps, a weight a block or a tensor its transformer block and name."""

    cosine: float
    cuts: dict[float, Cut]
    kept: dict[float, Kept] = field(default_factory=dict)
    block: int | None = None
    name: str = ""


def slerp(theta_0: torch.Tensor, theta_1: torch.Tensor, t: float) -> torch.Tensor:
    """Return the point at share `t` of the arc from theta_0 to theta_1, both seen as one flat vector."""
    weight_0, weight_1 = slerp_weights(cosine(theta_0, theta_1), t)
    return theta_0.float() * weight_0 + theta_1.float() * weight_1


def task_arithmetic(theta_0: torch.Tensor, theta_1: torch.Tensor, weight: float) -> torch.Tensor:
    """Return theta_0 + weight * (theta_1 - theta_0)."""
    return theta_0.float() + (theta_1.float() - theta_0.float()) * weight


def ties(theta_0: torch.Tensor, theta_1: torch.Tensor, density: float) -> torch.Tensor:
    """Return theta_0 plus the `density` share of largest changes.

    With a single task vector the sign election elects each sign it sees, and the disjoint mean divides by one.
    """
    cut = trim_cuts(theta_0, theta_1, [density])[density]
    return theta_0.float() + trim(theta_1.float() - theta_0.float(), cut)


def dare(theta_0: torch.Tensor, theta_1: torch.Tensor, drop: float, seed: int, name: str) -> torch.Tensor:
    """Return theta_0 plus the change with a random share `drop` of it set to zero and the rest scaled up."""
    uniform = torch.from_numpy(uniform_draws(seed, name).random(theta_0.numel(), dtype=np.float32))
    return theta_0.float() + drop_and_rescale(theta_1.float() - theta_0.float(), drop, uniform)


def cosine(theta_0: torch.Tensor, theta_1: torch.Tensor) -> float:
    """Return the cosine between two tensors seen as flat vectors, summed in fp64; a zero vector counts as length 1."""
    square_0 = square_1 = product = 0.0
    for _, first, second in paired_blocks(theta_0, theta_1):
        first, second = first.double(), second.double()
        square_0 += float(first @ first)
        square_1 += float(second @ second)
        product += float(first @ second)
    norm_0, norm_1 = math.sqrt(square_0), math.sqrt(square_1)
    scale = (norm_0 if norm_0 > SMALLEST_NORM else 1.0) * (norm_1 if norm_1 > SMALLEST_NORM else 1.0)
    return max(-1.0, min(1.0, product / scale))


def slerp_weights(cosine: float, t: float) -> tuple[float, float]:
    """Return the weights of theta_0 and theta_1 at share `t` of an arc; of a line where they are (anti)parallel."""
    if abs(cosine) > COLLINEAR_COSINE:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def drop_and_rescale(delta: torch.Tensor, drop: float, uniform: torch.Tensor) -> torch.Tensor:
    """Return fp32 `delta`, zero where the uniform draw is below `drop`, the rest times 1 / (1 - drop)."""
    kept = torch.ge(
        uniform.reshape(delta.shape), drop, out=torch.empty_like(delta)
    )  # torch.where takes ten times as long
    return kept.mul_(delta).mul_(1 / (1 - drop))


def soup(block: Block, weight: float) -> torch.Tensor:
    """Return theta_0 plus `weight` times the mean change of all tuned checkpoints."""
    total = block.delta
    for delta, _ in block.others:
        total = total + delta
    return total * (weight / (1 + len(block.others))) + block.theta_0


def dare_ties(block: Block, drop: float) -> torch.Tensor:
    """Return theta_0 plus the mean of the dropped and rescaled changes that have the sign of their sum."""
    deltas = [drop_and_rescale(block.delta, drop, block.uniform)]
    deltas += [drop_and_rescale(delta, drop, uniform) for delta, uniform in block.others]
    if len(deltas) == 1:
        return deltas[0] + block.theta_0
    stacked = torch.stack(deltas)
    agree = stacked.sign() == stacked.sum(0).sign()
    agree &= stacked != 0
    return (stacked * agree).sum(0) / agree.sum(0).clamp(min=1) + block.theta_0


def set_weights(block: Block, weights: Sequence[float]) -> torch.Tensor:
    """Return theta_0 plus, for each document set k, weights[k] * (theta_k - theta_(k-1)).

    In the changes since theta_0, of which each is the sum of those of the sets so far, that is their differences.
    """
    total = block.delta * weights[-1]
    for delta, (weight, after) in zip(block.earlier, pairwise(weights), strict=True):
        total = total + delta * (weight - after)
    return total + block.theta_0


def blocks(
    theta_0: torch.Tensor,
    tuned: Sequence[torch.Tensor],
    recipes: Sequence[Recipe],
    name: str,
    earlier: Sequence[torch.Tensor] = (),
) -> Iterator[Block]:
    """Yield the blocks of a whole tensor `name`, of any shape."""
    seed, flat_0 = draw_seed(recipes), theta_0.reshape(-1)
    flat, before = ([tensor.reshape(-1) for tensor in tensors] for tensors in (tuned, earlier))
    for start in range(0, len(flat_0), BLOCK_ELEMENTS):
        yield read_block(flat_0, flat, slice(start, start + BLOCK_ELEMENTS), name, seed, earlier=before)


def merge_tensor(
    recipe: Recipe,
    theta_0: torch.Tensor,
    tuned: Sequence[torch.Tensor],
    name: str = "",
    earlier: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """Return tensor `name` merged by a recipe, in fp32 and the shape of theta_0."""
    statistics = pair_statistics(theta_0, tuned[0], [recipe], name)
    merge = OPERATORS[recipe.operator]
    merged = [merge(block, statistics, recipe) for block in blocks(theta_0, tuned, [recipe], name, earlier)]
    return torch.cat(merged or [theta_0.reshape(-1).float()]).reshape(theta_0.shape)


def draw_seed(recipes: Sequence[Recipe]) -> int | None:
    """Return the one seed of the recipes that drop at random; None where none does."""
    seeds = {recipe.seed for recipe in recipes if recipe.operator in ("dare", "dare_ties")}
    if len(seeds) > 1:
        raise ValueError(f"one draw serves all drop rates, so the recipes need one seed, not {sorted(seeds)}")
    return seeds.pop() if seeds else None


def pair_statistics(
    theta_0: torch.Tensor, theta_1: torch.Tensor, recipes: Sequence[Recipe], name: str = ""
) -> PairStatistics:
    """Return the statistics of tensor pair `name` that the operators of `recipes` need; the others are left empty."""
    densities = [recipe.value for recipe in recipes if recipe.operator == "ties"]
    angle_needed = any(recipe.operator == "slerp" for recipe in recipes)
    pairs, size = partial(paired_blocks, theta_0, theta_1), theta_0.numel()
    return PairStatistics(
        cosine(theta_0, theta_1) if angle_needed else 1.0,
        trim_cuts(theta_0, theta_1, densities),
        {one.value: kept_changes(pairs, size, one.value) for one in recipes if one.operator == "fapm"},
        tensor_place(name).block,
        name,
    )


# An operator on one block: (block, statistics of the whole pair, recipe) -> merged block.
OPERATORS: dict[str, Callable[[Block, PairStatistics, Recipe], torch.Tensor]] = {
    "slerp": lambda block, pair, recipe: _weighted_sum(block, *slerp_weights(pair.cosine, recipe.value)),
    "task_arithmetic": lambda block, pair, recipe: block.delta * recipe.value + block.theta_0,
    "layer_weights": lambda block, pair, recipe: block.delta * recipe.weight_of(pair.block) + block.theta_0,
    "ties": lambda block, pair, recipe: trim(block.delta, pair.cuts[recipe.value], block.start) + block.theta_0,
    "dare": lambda block, pair, recipe: drop_and_rescale(block.delta, recipe.value, block.uniform) + block.theta_0,
    "dare_ties": lambda block, pair, recipe: dare_ties(block, recipe.value),
    "soup": lambda block, pair, recipe: soup(block, recipe.value),
    "fisher": lambda block, pair, recipe: block.delta * recipe.weight_in(pair.name) + block.theta_0,
    "set_weights": lambda block, pair, recipe: set_weights(block, [weight for _, weight in recipe.layers]),
    "fapm": lambda block, pair, recipe: (
        pruned(block.theta_0, block.delta, pair.kept[recipe.value], block.start) + block.theta_0
    ),
}


def _weighted_sum(block: Block, weight_0: float, weight_1: float) -> torch.Tensor:
    return block.theta_0 * weight_0 + block.theta_1 * weight_1
