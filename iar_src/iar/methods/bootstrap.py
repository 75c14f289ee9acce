"""Percentile bootstrap intervals of means, paired differences and means over suites."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
TAIL_PERCENT = 2.5
"""Of resamples beyond each end of a 95 % interval."""
_BLOCK_ELEMENTS = 4_000_000
"""Indices drawn at once: bounds memory at 32 MB whatever the number of items."""


def mean_interval(
    values: "ArrayLike", resamples: int = RESAMPLES, seed: int = 0, tail_percent: float = TAIL_PERCENT
) -> tuple[float, float, float]:
    """Return (mean, low, high): the percentile interval over resampled items, of 95 % unless other tails are wanted.

    `values` is one number an item, [N], without None; its unit is kept. Raises ValueError when empty.
    """
    return mean_of_means_interval([values], resamples, seed, tail_percent)


def paired_difference(
    a: "ArrayLike", b: "ArrayLike", resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """Return (mean, low, high) of a - b, both [N] over the same items in the same order."""
    import numpy as np

    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.shape != second.shape:
        raise ValueError(f"paired values need the same items, got {first.shape} and {second.shape}")
    return mean_interval(first - second, resamples, seed)


def mean_of_means_interval(
    groups: "Sequence[ArrayLike]", resamples: int = RESAMPLES, seed: int = 0, tail_percent: float = TAIL_PERCENT
) -> tuple[float, float, float]:
    """Return (mean, low, high) of the unweighted mean of the groups' means, each group resampled by itself."""
    import numpy as np

    arrays = [np.asarray(group, dtype=float) for group in groups]
    if not arrays or any(array.ndim != 1 or not array.size for array in arrays):
        raise ValueError("an interval needs at least one value in every group")
    generator = np.random.default_rng(seed)
    means = np.mean([_resampled_means(array, resamples, generator) for array in arrays], axis=0)
    low, high = np.percentile(means, [tail_percent, 100 - tail_percent])
    return float(np.mean([array.mean() for array in arrays])), float(low), float(high)


def _resampled_means(
    values: "NDArray[numpy.float64]", resamples: int, generator: "numpy.random.Generator"
) -> "NDArray[numpy.float64]":
    """Return the mean of each resample, [resamples]."""
    import numpy as np

    block = max(1, _BLOCK_ELEMENTS // values.size)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return np.concatenate(
        [values[generator.integers(0, values.size, (size, values.size))].mean(axis=1) for size in sizes]
    )
