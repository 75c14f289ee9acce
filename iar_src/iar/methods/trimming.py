"""The trim of TIES (Yadav et al. 2306.01708): the share of a tensor's changes that is largest, and no tensor held.

Floats of one sign are ordered as their bits are. So the k-th largest of any number of them follows from two
histograms: of the upper half of the bits of all, then of the lower half of those that share its upper half.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.functional import hardshrink

from iar.methods.merge_blocks import paired_blocks

HALF = 16  # bits of an fp32 number


@dataclass(frozen=True)
class Cut:
    """Which elements a trim keeps: |delta| > value, and those equal to it at a flat index below `ties_before`."""

    value: float
    ties_before: int = 0


KEEP_ALL = Cut(-1.0)
KEEP_NONE = Cut(math.inf)

# Yields (flat start index, bits of |theta_1 - theta_0|) block by block.
Magnitudes = Callable[[], Iterator[tuple[int, np.ndarray]]]


def kept_elements(size: int, density: float) -> int:
    """Return how many of `size` elements a trim to `density` keeps: rounded down, but one at least."""
    if density <= 0 or size == 0:
        return 0
    return size if density >= 1 else max(1, int(density * size))


def trim_cuts(theta_0: torch.Tensor, theta_1: torch.Tensor, densities: Collection[float]) -> dict[float, Cut]:
    """Return for each density the cut that keeps exactly `kept_elements` of the largest |theta_1 - theta_0|.

    Of equal elements at the cut those with the lower flat index stay. Two passes serve all densities, and one more
    each density that parts equal elements. Holds a few blocks.
    """
    size = theta_0.numel()
    kept = {density: kept_elements(size, density) for density in densities}
    parted = {density: count for density, count in kept.items() if 0 < count < size}
    cuts = {density: KEEP_ALL if count else KEEP_NONE for density, count in kept.items() if density not in parted}
    if not parted:
        return cuts
    magnitudes: Magnitudes = partial(_magnitudes, theta_0, theta_1)
    upper = np.zeros(1 << HALF, dtype=np.int64)
    for _, bits in magnitudes():
        upper += np.bincount(bits >> HALF, minlength=len(upper))
    places = {density: _place(upper, count) for density, count in parted.items()}
    lower = {half: np.zeros(1 << HALF, dtype=np.int64) for half, _ in places.values()}
    for _, bits in magnitudes():
        halves = bits >> HALF
        for half, counts in lower.items():
            counts += np.bincount(bits[halves == half] & ((1 << HALF) - 1), minlength=len(counts))
    for density, (half, left) in places.items():
        rest, ties_kept = _place(lower[half], left)
        cut_bits = np.uint32(half << HALF | rest)
        # At value 0 the ties are unchanged elements, so which of them stay is the same.
        all_kept = cut_bits == 0 or ties_kept == lower[half][rest]
        ties_before = size if all_kept else _end_of_ties(magnitudes, cut_bits, ties_kept)
        cuts[density] = Cut(float(cut_bits.view(np.float32)), ties_before)
    return cuts


def trim(delta: torch.Tensor, cut: Cut, start: int = 0) -> torch.Tensor:
    """Return fp32 `delta` with the elements outside `cut` set to zero; its first element has flat index `start`."""
    flat = delta.reshape(-1)
    split = min(max(cut.ties_before - start, 0), len(flat))
    just_below = float(np.nextafter(np.float32(cut.value), np.float32(-np.inf)))
    parts = [hardshrink(flat[:split], just_below), hardshrink(flat[split:], cut.value)]
    parts = [part for part in parts if len(part)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts or [flat])).reshape(delta.shape)


def _magnitudes(theta_0: torch.Tensor, theta_1: torch.Tensor) -> Iterator[tuple[int, np.ndarray]]:
    for start, first, second in paired_blocks(theta_0, theta_1):
        yield start, (second - first).abs_().numpy().view(np.uint32)


def _place(counts: np.ndarray, rank: int) -> tuple[int, int]:
    """Return the bin of the element that is `rank`-th from the top, and which one it is within its bin, from 1."""
    from_top = np.cumsum(counts[::-1])
    behind = int(np.searchsorted(from_top, rank))
    return len(counts) - 1 - behind, rank - int(from_top[behind] - counts[::-1][behind])


def _end_of_ties(magnitudes: Magnitudes, bits: np.uint32, count: int) -> int:
    """Return the flat index behind the `count`-th element with these bits."""
    for start, block in magnitudes():
        equal = block == bits
        here = int(np.count_nonzero(equal))
        if here >= count:
            return start + int(np.flatnonzero(equal)[count - 1]) + 1
        count -= here
    raise AssertionError("a counted tie was not found again")
