"""Weights from Fisher information: a tensor goes where one of the two models is sure of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.fisher import tensor_weights
from iar.records import TensorInformation

FOUND = [
    TensorInformation("a", 30, 2.0, 1.0),
    TensorInformation("b", 10, 2.0, 9.0),
    TensorInformation("c", 5, 0.0, 0.0),
]


def test_a_tensor_follows_the_model_that_is_surer_of_it() -> None:
    # Means over the model: 80 / 45 of theta_0, 120 / 45 of theta_IA.
    first, second, unknown = (weight for _, weight in tensor_weights(FOUND, 0.5))
    assert first == pytest.approx((1 / 120) / (2 / 80 + 1 / 120), abs=1e-6)
    assert second == pytest.approx((9 / 120) / (2 / 80 + 9 / 120), abs=1e-6)
    assert unknown == 0.5


def test_the_ends_are_the_parents_and_equal_information_is_task_arithmetic() -> None:
    assert {weight for _, weight in tensor_weights(FOUND[:2], 0.0)} == {0.0}
    assert {weight for _, weight in tensor_weights(FOUND[:2], 1.0)} == {1.0}
    alike = [replace(one, tuned=3 * one.base) for one in FOUND]
    assert {weight for _, weight in tensor_weights(alike, 0.3)} == {0.3}


MEANS = st.one_of(st.just(0.0), st.floats(1e-6, 1e3))
INFORMATION = st.lists(
    st.builds(TensorInformation, st.text(max_size=3), st.integers(1, 99), MEANS, MEANS), min_size=1, max_size=8
)


@given(INFORMATION, st.floats(0, 1), st.floats(1e-3, 1e3))
def test_a_weight_is_a_share_and_no_scale_matters(found: list[TensorInformation], share: float, scale: float) -> None:
    weights = tensor_weights(found, share)
    assert [name for name, _ in weights] == [one.tensor for one in found]
    assert all(0 <= weight <= 1 for _, weight in weights)
    scaled = tensor_weights([replace(one, base=one.base * scale) for one in found], share)
    assert [weight for _, weight in scaled] == pytest.approx([weight for _, weight in weights], abs=2e-6)
