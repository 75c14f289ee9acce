"""FAPM against its formula in plain torch, and where the formula has no value."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.methods import merging
from iar.methods.fapm import fapm
from iar.methods.merge_grid import Recipe


def formula(theta_0: torch.Tensor, theta_1: torch.Tensor, share: float) -> torch.Tensor:
    """The published rule, for weights that are not zero."""
    delta = theta_1 - theta_0
    score = delta.abs() - theta_0.abs().mean() * delta.abs() / theta_0.abs()
    mask = torch.zeros_like(delta).flatten()
    mask[torch.topk(score.flatten(), int(share * delta.numel())).indices] = 1
    return theta_0 + delta * mask.view_as(delta)


def pair(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta_0 = torch.randn(shape, generator=generator)
    return theta_0, theta_0 + 0.1 * torch.randn(shape, generator=generator)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(7,), (30, 40), (5, 6, 7)])
def test_equals_the_formula(shape: tuple[int, ...], share: float) -> None:
    theta_0, theta_1 = pair(*shape)
    assert torch.equal(fapm(theta_0, theta_1, share), formula(theta_0, theta_1, share))


VALUES = st.floats(-4, 4, width=32)


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=60), st.floats(0, 1))
def test_every_element_is_the_old_or_the_new_and_no_more_than_the_share_is_new(
    values: list[tuple[float, float]], share: float
) -> None:
    theta_0 = torch.tensor([first for first, _ in values])
    delta = torch.tensor([second for _, second in values])
    found = fapm(theta_0, theta_0 + delta, share)
    moved = theta_0 + ((theta_0 + delta) - theta_0)
    assert bool(((found == theta_0) | (found == moved)).all())
    assert int((found != theta_0).sum()) <= int(share * len(values))
    assert not found[theta_0 == 0].any()


def test_a_weight_of_zero_is_never_changed_and_makes_no_nan() -> None:
    theta_0 = torch.tensor([0.0, 0.0, 1.0, -2.0, 3.0])
    theta_1 = torch.tensor([5.0, 0.0, 1.5, -2.5, 3.5])
    kept = fapm(theta_0, theta_1, 1.0)
    assert kept.tolist() == [0.0, 0.0, 1.5, -2.5, 3.5]
    assert bool(torch.isfinite(kept).all())


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_a_tensor_of_zeros_stays_as_it_was(share: float) -> None:
    assert not fapm(torch.zeros(10), torch.arange(10.0), share).any()


def test_of_equal_scores_the_first_ones_stay() -> None:
    theta_0, theta_1 = torch.ones(10), torch.full((10,), 1.5)
    assert fapm(theta_0, theta_1, 0.3).tolist() == [1.5] * 3 + [1.0] * 7


def test_weights_of_any_dtype_are_ranked_and_added_in_fp32() -> None:
    theta_0, theta_1 = (tensor.bfloat16() for tensor in pair(64, 64))
    found = fapm(theta_0, theta_1, 0.1)
    assert found.dtype == torch.float32
    assert torch.equal(found, fapm(theta_0.float(), theta_1.float(), 0.1))


@pytest.mark.parametrize("block_elements", [1, 7, 64, 4096])
@pytest.mark.parametrize("ties", [False, True])
def test_a_merge_operator_block_by_block(monkeypatch: pytest.MonkeyPatch, block_elements: int, ties: bool) -> None:
    monkeypatch.setattr(merging, "BLOCK_ELEMENTS", block_elements)
    theta_0, theta_1 = (torch.ones(9, 11), torch.full((9, 11), 1.25)) if ties else pair(9, 11)
    recipe = Recipe("x", "fapm", "share", 0.1, 17)
    statistics = merging.pair_statistics(theta_0, theta_1, [recipe])
    merged = [
        merging.OPERATORS["fapm"](block, statistics, recipe)
        for block in merging.blocks(theta_0, [theta_1], [recipe], "x")
    ]
    assert torch.equal(torch.cat(merged).view_as(theta_0), fapm(theta_0, theta_1, 0.1))


def test_overflow_of_the_relative_change_counts_as_infinite() -> None:
    theta_0, theta_1 = torch.tensor([1e-38, 1.0, 1.0]), torch.tensor([3e38, 1.1, 1.2])
    assert math.isfinite(float(fapm(theta_0, theta_1, 0.4).sum()))
    assert fapm(theta_0, theta_1, 0.4).tolist() == pytest.approx([0.0, 1.0, 1.2])
