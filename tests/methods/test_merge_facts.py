import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.merge_facts import (
    Place,
    Sums,
    layer_facts,
    may_be_near,
    squared_distance,
    sums_of,
    tensor_place,
    total,
)

PLACES = {
    "model.embed_tokens.weight": Place(None, "embed_tokens"),
    "model.norm.weight": Place(None, "norm"),
    "lm_head.weight": Place(None, "lm_head"),
    "model.layers.3.self_attn.q_proj.weight": Place(3, "self_attn.q_proj"),
    "model.layers.12.mlp.up_proj.bias": Place(12, "mlp.up_proj.bias"),
    "model.language_model.layers.0.input_layernorm.weight": Place(0, "input_layernorm"),
    "transformer.h.7.attn.c_attn.weight": Place(7, "attn.c_attn"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_tensors_place_is_read_from_its_name(name: str) -> None:
    assert tensor_place(name) == PLACES[name]


def test_sums_are_those_of_the_values_as_written() -> None:
    theta_0 = torch.tensor([1.0, 2.0, 3.0, 4.0])
    theta_1 = torch.tensor([1.5, 2.0, 2.0, 4.0])
    written = torch.tensor([1.25, 2.0, 2.0, 4.0], dtype=torch.bfloat16)
    delta = theta_1 - theta_0
    sums = sums_of(written, theta_0, delta, float(delta @ delta))
    assert sums == Sums(4, 2, 0.0625 + 1.0, 0.0625, 1.25)
    assert sums.changed_share == 0.5
    assert sums.distance_to_base == pytest.approx(math.sqrt(1.0625 / 1.25), abs=1e-6)
    assert total([sums, sums]) == Sums(8, 4, 2.125, 0.125, 2.5)


def test_equal_parents_have_no_distances() -> None:
    assert Sums(4, 0, 0.0, 0.0, 0.0).distance_to_base == 0.0


def test_facts_by_block_and_by_kind_cover_each_element_once() -> None:
    names = [name for name in PLACES if "h.7" not in name]
    sums = {name: Sums(10 * number, number, 1.0, 2.0, 4.0) for number, name in enumerate(names, 1)}
    facts = layer_facts("ties-d0.3", sums)
    for axis in ("block", "kind"):
        assert sum(one.elements for one in facts if one.axis == axis) == sum(one.elements for one in sums.values())
    assert [one.group for one in facts if one.axis == "block"] == ["outside", "0", "3", "12"]
    assert {one.distance_to_base for one in facts} == {0.5}


VECTORS = st.lists(st.floats(-10, 10, width=32), min_size=6, max_size=6)


@given(VECTORS, VECTORS, VECTORS, st.floats(0.001, 0.5))
def test_no_near_pair_is_missed(first: list[float], second: list[float], tuned: list[float], within: float) -> None:
    one, other, theta_1 = (torch.tensor(values) for values in (first, second, tuned))
    unit = float(theta_1.double().norm())
    if unit < 1e-3:
        return

    def facts(vector: torch.Tensor) -> tuple[float, float]:
        return float(vector.double().norm()) / unit, float((vector.double() - theta_1.double()).norm()) / unit

    if math.sqrt(squared_distance([(one, other)])) / unit <= within:
        assert may_be_near(facts(one), facts(other), within)
