"""The changes of several document sets to one model, Delta_k = theta_k - theta_(k-1), compared with one another.

They add up to theta_n - theta_0, which is what a merge takes a part of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from iar.methods.merge_facts import FACT_DIGITS, tensor_place
from iar.records import DeltaFacts

if TYPE_CHECKING:
    import torch

MODEL, OUTSIDE = "model", "outside"


@dataclass(frozen=True)
class Gram:
    """Inner products of the changes, [sets][sets], summed over `elements` weights."""

    elements: int
    products: tuple[tuple[float, ...], ...]

    def __add__(self, other: "Gram") -> "Gram":
        rows = zip(self.products, other.products, strict=True)
        sums = tuple(tuple(one + two for one, two in zip(*pair, strict=True)) for pair in rows)
        return Gram(self.elements + other.elements, sums)


def gram(thetas: "Sequence[torch.Tensor]") -> Gram:
    """Return the inner products, in fp64, of the fp32 changes between neighbours; the tensors are flat, of one size."""
    import torch

    wide = [theta.float() for theta in thetas]
    deltas_KN = torch.stack([after - before for before, after in pairwise(wide)])
    products = (deltas_KN.double() @ deltas_KN.double().T).tolist()
    return Gram(deltas_KN.shape[1], tuple(map(tuple, products)))


def delta_facts(grams: Mapping[str, Gram]) -> list[DeltaFacts]:
    """Return the facts of the whole model, then of each block in order; `grams` are by tensor name."""
    blocks: dict[int | None, Gram] = {}
    for name, own in sorted(grams.items()):
        block = tensor_place(name).block
        blocks[block] = blocks[block] + own if block in blocks else own
    whole, *rest = blocks.values()
    for one in rest:
        whole = whole + one
    named = sorted(blocks.items(), key=lambda item: -1 if item[0] is None else item[0])
    return [
        _facts(MODEL, whole),
        *(_facts(OUTSIDE if block is None else str(block), own) for block, own in named),
    ]


def _facts(group: str, own: Gram) -> DeltaFacts:
    norms = [math.sqrt(row[place]) for place, row in enumerate(own.products)]
    cosines = [
        own.products[one][two] / (norms[one] * norms[two]) if norms[one] and norms[two] else 0.0
        for one, two in combinations(range(len(norms)), 2)
    ]
    rounded = (tuple(round(value, FACT_DIGITS) for value in values) for values in (norms, cosines))
    return DeltaFacts(group, own.elements, *rounded)
