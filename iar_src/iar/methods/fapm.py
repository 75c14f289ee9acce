"""FAPM (Huang et al. 2509.08255): of the change that fine-tuning made to a tensor, keep what weighs little on it.

With D = theta_1 - theta_0, an element scores S = abs(D) - mean(abs(theta_0)) * abs(D) / abs(theta_0): large changes
count for, changes large against the weight they are made to count against. The `share` of highest scores stays,
int(share * size) elements, the rest of D becomes zero, nothing is rescaled.

An element whose weight is 0 scores -inf: any change to it is infinitely large against it. It is never kept, so a
tensor of zeros alone stays as it was.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

Pairs = Iterable[tuple[int, torch.Tensor, torch.Tensor]]
"""(flat start index, theta_0 slice, theta_1 slice) of all blocks of a tensor pair, flat and in fp32."""


@dataclass(frozen=True)
class Kept:
    """What stays of one tensor's change: scores above `value`, and those equal to it at a flat index below
    `ties_before`. `mean_magnitude` is mean(abs(theta_0)) of the whole tensor."""

    mean_magnitude: float
    value: float
    ties_before: int


def fapm(theta_0: torch.Tensor, theta_1: torch.Tensor, share: float) -> torch.Tensor:
    """Return theta_0 plus what is kept of the change, in fp32 and the shape of theta_0."""
    first, second = theta_0.reshape(-1).float(), theta_1.reshape(-1).float()
    kept = kept_changes(lambda: [(0, first, second)], len(first), share)
    return (first + pruned(first, second - first, kept)).reshape(theta_0.shape)


def scores(theta_0: torch.Tensor, delta: torch.Tensor, mean_magnitude: float) -> torch.Tensor:
    """Return S of each element, fp32; `mean_magnitude` is that of the whole tensor."""
    change, weight = delta.abs(), theta_0.abs()
    return torch.where(weight == 0, -math.inf, change - change * mean_magnitude / weight)


def pruned(theta_0: torch.Tensor, delta: torch.Tensor, kept: Kept, start: int = 0) -> torch.Tensor:
    """Return `delta` with the elements that are not kept set to zero; its first one has flat index `start`."""
    found = scores(theta_0, delta, kept.mean_magnitude)
    stays = found > kept.value
    ties = min(max(kept.ties_before - start, 0), len(delta))
    stays[:ties] |= found[:ties] == kept.value
    return delta * stays


def kept_changes(pairs: Callable[[], Pairs], size: int, share: float) -> Kept:
    """Return what stays of a tensor pair of `size` elements; `pairs` is read up to three times.

    Of equal scores at the cut those with the lower flat index stay. Holds one fp32 copy of the tensor.
    """
    mean_magnitude = sum(float(first.abs().sum(dtype=torch.float64)) for _, first, _ in pairs()) / max(1, size)
    count = min(size, int(share * size))
    if count == 0:
        return Kept(mean_magnitude, math.inf, 0)
    found = np.empty(size, dtype=np.float32)
    for start, first, second in pairs():
        found[start : start + len(first)] = scores(first, second - first, mean_magnitude).numpy()
    found.partition(size - count)
    value = float(found[size - count])
    if value == -math.inf:
        return Kept(mean_magnitude, value, 0)
    ties_kept = count - int(np.count_nonzero(found > value))
    return Kept(mean_magnitude, value, _end_of_ties(pairs, mean_magnitude, value, ties_kept))


def _end_of_ties(pairs: Callable[[], Pairs], mean_magnitude: float, value: float, count: int) -> int:
    """Return the flat index behind the element that is number `count` of those scoring `value`."""
    for start, first, second in pairs():
        places = torch.nonzero(scores(first, second - first, mean_magnitude) == value).flatten()
        if len(places) >= count:
            return start + int(places[count - 1]) + 1
        count -= len(places)
    raise AssertionError("a counted tie was not found again")
