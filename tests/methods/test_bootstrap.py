"""Bootstrap intervals: repeatable, containing the mean, close to the normal interval, fast."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods.bootstrap import mean_interval, mean_of_means_interval, paired_difference

VALUES = st.lists(st.sampled_from([0.0, 50.0, 100.0]), min_size=1, max_size=60)


@settings(deadline=None)
@given(values=VALUES, seed=st.integers(0, 1000))
def test_the_interval_holds_the_mean_and_repeats_itself(values: list[float], seed: int) -> None:
    mean, low, high = mean_interval(values, 500, seed)
    assert mean == pytest.approx(np.mean(values))
    assert min(values) <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= max(values)
    assert mean_interval(values, 500, seed) == (mean, low, high)


def test_the_interval_of_many_values_is_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(40, 10, 2000)
    mean, low, high = mean_interval(values, 2000, 17)
    margin = 1.96 * values.std() / np.sqrt(values.size)
    assert low == pytest.approx(mean - margin, abs=0.05)
    assert high == pytest.approx(mean + margin, abs=0.05)


@settings(deadline=None)
@given(values=VALUES, shift=st.floats(-5, 5))
def test_a_constant_difference_has_no_width(values: list[float], shift: float) -> None:
    mean, low, high = paired_difference([value + shift for value in values], values, 200, 0)
    assert (mean, low, high) == pytest.approx((shift, shift, shift), abs=1e-9)


def test_pairing_is_narrower_than_two_intervals() -> None:
    generator = np.random.default_rng(2)
    items = generator.normal(50, 20, 300)
    better = items + generator.normal(3, 2, 300)
    _, low, high = paired_difference(better, items, 2000, 0)
    _, low_alone, high_alone = mean_interval(items, 2000, 0)
    assert high - low < 0.3 * (high_alone - low_alone)
    assert low > 0


def test_suites_weigh_the_same_whatever_their_size() -> None:
    mean, low, high = mean_of_means_interval([[0.0] * 500, [90.0, 90.0], [30.0]], 200, 0)
    assert (mean, low, high) == pytest.approx((40.0, 40.0, 40.0))


def test_empty_and_unpaired_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one value in every group"):
        mean_interval([])
    with pytest.raises(ValueError, match="at least one value in every group"):
        mean_of_means_interval([[1.0], []])
    with pytest.raises(ValueError, match="the same items"):
        paired_difference([1.0], [1.0, 2.0])
