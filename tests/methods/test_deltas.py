"""Changes of several document sets beside one another, against the formulas written out."""

import math

import pytest
import torch

from iar.methods.deltas import delta_facts, gram


def test_norms_and_cosines_are_those_of_the_changes() -> None:
    theta_0, first, second = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
    (whole, outside) = delta_facts({"model.norm.weight": gram([theta_0, first, second])})
    assert (whole.group, outside.group, whole.elements) == ("model", "outside", 2)
    assert whole.norms == (5.0, 4.0)
    assert whole.cosines == (-0.8,)


def test_blocks_of_a_tensor_and_tensors_of_a_block_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    thetas = torch.randn(4, 30, generator=generator)
    parts = [gram(list(thetas[:, :10])), gram(list(thetas[:, 10:]))]
    assert parts[0] + parts[1] == gram(list(thetas)) or (parts[0] + parts[1]).products[0] == pytest.approx(
        gram(list(thetas)).products[0]
    )
    found = delta_facts({"model.layers.10.mlp.weight": parts[0], "model.layers.2.mlp.weight": parts[1]})
    assert [one.group for one in found] == ["model", "2", "10"]
    assert [one.elements for one in found] == [30, 20, 10]
    deltas = thetas[1:] - thetas[:-1]
    assert found[0].norms == pytest.approx([float(delta.norm()) for delta in deltas], abs=1e-5)
    expected = [float(torch.cosine_similarity(deltas[a], deltas[b], dim=0)) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found[0].cosines == pytest.approx(expected, abs=1e-5)


def test_a_set_that_changed_nothing_has_no_direction() -> None:
    same = torch.ones(3)
    whole, _ = delta_facts({"lm_head.weight": gram([same, same + 1, same + 1])})
    assert whole.norms == (round(math.sqrt(3), 6), 0.0) and whole.cosines == (0.0,)
