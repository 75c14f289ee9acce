"""Attention of short rows equals PyTorch's own, forward and backward."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from iar.methods.attention import short_attention

SIZE, SCALING = 16, 0.3


def states(dtype: torch.dtype, rows: int, heads: int, groups: int, length: int, keys: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(length)
    shapes = [(heads, length), (groups, keys), (groups, keys), (heads, length)]
    return [torch.randn(rows, h, t, SIZE, generator=draw).to(dtype).requires_grad_() for h, t in shapes]


@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    length=st.integers(1, 20),
    shared=st.integers(0, 5),
)
def test_equals_torch_with_and_without_a_shared_prefix(
    rows: int, groups: int, per_group: int, length: int, shared: int
) -> None:
    *inputs, gradient = states(torch.float32, rows, groups * per_group, groups, length, shared + length)
    mask = torch.ones(length, shared + length, dtype=torch.bool).tril(shared) if shared else None

    ours = short_attention(*inputs, mask, SCALING)
    torchs = scaled_dot_product_attention(
        *inputs, attn_mask=mask, is_causal=mask is None, scale=SCALING, enable_gqa=True
    )

    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    pairs = zip(*(torch.autograd.grad(mixed, inputs, gradient) for mixed in (ours, torchs)), strict=True)
    for our, other in pairs:
        torch.testing.assert_close(our, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_bfloat16_is_as_near_to_fp32_as_torch(name: str) -> None:
    *exact, gradient = states(torch.float32, 2, 6, 2, 24, 24)
    rounded = [state.detach().bfloat16().requires_grad_() for state in exact]
    place = ["query", "key", "value"].index(name)

    truth = torch.autograd.grad(short_attention(*exact, None, SCALING), exact, gradient)[place]
    ours = torch.autograd.grad(short_attention(*rounded, None, SCALING), rounded, gradient.bfloat16())[place]
    mixed = scaled_dot_product_attention(*rounded, is_causal=True, scale=SCALING, enable_gqa=True)
    torchs = torch.autograd.grad(mixed, rounded, gradient.bfloat16())[place]

    assert (ours - truth).abs().mean() <= 1.2 * (torchs - truth).abs().mean()
