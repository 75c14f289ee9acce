"""The grid of merges as data: which operator with which value of its hyper-parameter, or which weight a block."""

from collections.abc import Iterator
from dataclasses import dataclass

from iar.config import RecoverSection

REST = "rest"


@dataclass(frozen=True)
class Recipe:
    """What rebuilds a candidate from its parents, bit for bit. `layers` are pairs of a block range and its weight, of
    `layer_weights` alone."""

    id: str
    operator: str
    parameter: str
    value: float
    seed: int
    layers: tuple[tuple[str, float], ...] = ()

    def weight_of(self, block: int | None) -> float:
        """Return the weight of a transformer block, None for what lies in no block; that of `rest`, else 0."""
        table = dict(self.layers)
        for blocks, weight in self.layers:
            if blocks != REST and block is not None:
                first, last = map(int, blocks.split("-"))
                if first <= block <= last:
                    return weight
        return table.get(REST, 0.0)


# operator, its hyper-parameter, the letter of that in an id, the run file's field of values; in grid order
GRID_ROWS = (
    ("slerp", "t", "t", "slerp_t"),
    ("task_arithmetic", "weight", "w", "task_arithmetic_weight"),
    ("ties", "density", "d", "ties_density"),
    ("dare", "drop", "p", "dare_drop"),
    ("dare_ties", "drop", "p", "dare_ties_drop"),
    ("soup", "weight", "w", "soup_weight"),
)
SEVERAL = frozenset(("dare_ties", "soup"))
"""Operators that also merge the checkpoints of `tuned_too`."""


def grid(recover: RecoverSection, seed: int) -> list[Recipe]:
    """Return the recipes in grid order; ids read `slerp-t0.2`, `ties-d0.3`, `dare-p0.1`, `layer_weights-NAME`."""
    return [
        Recipe(f"{operator}-{letter}{value:g}", operator, parameter, value, seed)
        for operator, parameter, letter, field in GRID_ROWS
        for value in getattr(recover, field)
    ] + list(_layer_weights(recover, seed))


def _layer_weights(recover: RecoverSection, seed: int) -> Iterator[Recipe]:
    """Yield a recipe a table, by name; its value, which breaks ties in the selection, is the mean of the weights."""
    for name, table in sorted(recover.layer_weights.items()):
        mean = sum(table.values()) / len(table)
        layers = tuple(sorted(table.items()))
        yield Recipe(f"layer_weights-{name}", "layer_weights", "mean weight", mean, seed, layers)
