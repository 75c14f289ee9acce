"""The grid of merges as data: which operator with which value of its hyper-parameter, or which weight a block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iar.config import RecoverSection
from iar.methods.fisher import tensor_weights
from iar.records import TensorInformation

REST = "rest"


@dataclass(frozen=True)
class Recipe:
    """What rebuilds a candidate from its parents, bit for bit. `layers` are pairs of a part and its weight: of
    `layer_weights` a block range, of `set_weights` the number of a document set, of `fisher` a tensor."""

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

    def weight_in(self, tensor: str) -> float:
        """Return the weight of a tensor; the value, where the recipe knows nothing of it."""
        return dict(self.layers).get(tensor, self.value)


# operator, its hyper-parameter, the letter of that in an id, the run file's field of values; in grid order
GRID_ROWS = (
    ("slerp", "t", "t", "slerp_t"),
    ("task_arithmetic", "weight", "w", "task_arithmetic_weight"),
    ("ties", "density", "d", "ties_density"),
    ("dare", "drop", "p", "dare_drop"),
    ("dare_ties", "drop", "p", "dare_ties_drop"),
    ("soup", "weight", "w", "soup_weight"),
    ("fisher", "weight", "w", "fisher_weight"),
)
SEVERAL = frozenset(("dare_ties", "soup"))
"""Operators that also merge the checkpoints of `tuned_too`."""
SETS = "set_weights"
"""The operator that also merges what the model was after each earlier document set."""


def grid(recover: RecoverSection, seed: int, information: Sequence[TensorInformation] = ()) -> list[Recipe]:
    """Return the recipes in grid order; ids read `slerp-t0.2`, `ties-d0.3`, `layer_weights-NAME`.

    Without the information of the tensors those of `fisher` can be counted and named, not merged by.
    """
    return [
        Recipe(
            f"{operator}-{letter}{value:g}",
            operator,
            parameter,
            value,
            seed,
            tensor_weights(information, value) if operator == "fisher" else (),
        )
        for operator, parameter, letter, field in GRID_ROWS
        for value in getattr(recover, field)
    ] + list(_tables(recover, seed))


def _tables(recover: RecoverSection, seed: int) -> Iterator[Recipe]:
    """Yield a recipe a table, by name; its value, which breaks ties in the selection, is the mean of the weights."""
    of_blocks = {name: tuple(sorted(table.items())) for name, table in recover.layer_weights.items()}
    of_sets = {
        name: tuple((str(number), weight) for number, weight in enumerate(weights, 1))
        for name, weights in recover.set_weights.items()
    }
    for operator, tables in (("layer_weights", of_blocks), (SETS, of_sets)):
        for name, layers in sorted(tables.items()):
            mean = sum(weight for _, weight in layers) / len(layers)
            yield Recipe(f"{operator}-{name}", operator, "mean weight", mean, seed, layers)
