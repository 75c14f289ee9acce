"""Facts of a merged model: how far it moved from both parents, as a whole and by block and kind of tensor."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from iar.records import LayerFacts

if TYPE_CHECKING:
    import torch

FACT_DIGITS = 6  # beyond them the order of summation shows
# Names of Hugging Face models: model.layers.3.mlp.up_proj.weight, transformer.h.3.attn.c_attn.bias, ...
IN_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$")


class Place(NamedTuple):
    """Where a tensor stands: its transformer block, None outside all, and its kind, such as mlp.up_proj."""

    block: int | None
    kind: str


@dataclass(frozen=True)
class Sums:
    """Sums over elements of a candidate: their number, those unlike theta_0, squared distances to theta_0 and to
    theta_IA, and that between the two."""

    elements: int = 0
    changed: int = 0
    to_base: float = 0.0
    to_tuned: float = 0.0
    delta: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.elements + other.elements,
            self.changed + other.changed,
            self.to_base + other.to_base,
            self.to_tuned + other.to_tuned,
            self.delta + other.delta,
        )

    @property
    def changed_share(self) -> float:
        """Share of elements that differ from theta_0."""
        return round(self.changed / max(1, self.elements), FACT_DIGITS)

    @property
    def distance_to_base(self) -> float:
        """||c - theta_0|| / ||theta_IA - theta_0||."""
        return self.relative(self.to_base)

    @property
    def distance_to_tuned(self) -> float:
        """||c - theta_IA|| / ||theta_IA - theta_0||."""
        return self.relative(self.to_tuned)

    def relative(self, square: float) -> float:
        """Return a squared distance as a distance in units of the one between the parents."""
        return round(math.sqrt(square / self.delta), FACT_DIGITS) if self.delta else 0.0


def sums_of(written: "torch.Tensor", theta_0: "torch.Tensor", delta: "torch.Tensor", delta_square: float) -> Sums:
    """Return the sums of one block, flat: `written` in the output dtype, theta_0 and delta in fp32.

    `delta_square` is delta @ delta, which is the same for all candidates.
    """
    moved = written.float() - theta_0
    # numpy counts several times faster than torch, and booleans faster than floats
    changed = np.count_nonzero(moved.numpy() != 0) if moved.device.type == "cpu" else int(moved.count_nonzero())
    to_base = float(moved @ moved)
    rest = moved.sub_(delta)
    return Sums(len(moved), int(changed), to_base, float(rest @ rest), delta_square)


def tensor_place(name: str) -> Place:
    """Return where the tensor of this name stands, `.weight` left out of its kind."""
    found = IN_BLOCK.search(name)
    block, tail = (int(found[1]), found[2]) if found else (None, name.rpartition("model.")[2])
    return Place(block, tail.removesuffix(".weight"))


def layer_facts(candidate: str, sums: Mapping[str, Sums]) -> list[LayerFacts]:
    """Return the facts of each block in order, then of each kind of tensor by name; `sums` are by tensor name."""
    blocks: dict[str, Sums] = {}
    kinds: dict[str, Sums] = {}
    placed = [(tensor_place(name), name) for name in sums]
    for place, name in sorted(placed, key=lambda one: (-1 if one[0].block is None else one[0].block, one[1])):
        own = sums[name]
        block = "outside" if place.block is None else str(place.block)
        blocks[block] = blocks.get(block, Sums()) + own
        kinds[place.kind] = kinds.get(place.kind, Sums()) + own
    groups = [("block", blocks), ("kind", dict(sorted(kinds.items())))]
    return [
        LayerFacts(candidate, axis, group, own.elements, own.changed_share, own.distance_to_base, own.distance_to_tuned)
        for axis, by_group in groups
        for group, own in by_group.items()
    ]


def may_be_near(first: tuple[float, float], second: tuple[float, float], within: float) -> bool:
    """Return whether two candidates may be closer than `within`, from their distances to theta_0 and theta_IA.

    By the triangle inequality these differ by no more than the distance of the two.
    """
    slack = within + 2 * 10**-FACT_DIGITS
    return all(abs(one - other) <= slack for one, other in zip(first, second, strict=True))


def squared_distance(blocks: "Iterable[tuple[torch.Tensor, torch.Tensor]]") -> float:
    """Return the squared distance of two models, given as pairs of flat blocks."""
    total = 0.0
    for one, other in blocks:
        difference = one.float() - other.float()
        total += float(difference @ difference)
    return total


def total(sums: Iterable[Sums]) -> Sums:
    """Return the sum of all, in their order."""
    result = Sums()
    for one in sums:
        result = result + one
    return result
