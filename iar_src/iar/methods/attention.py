"""Attention of short rows by plain matrix products.

PyTorch's attention for CPUs takes about ten times its forward time backward, whatever the length. Where the scores of a
head fit in the processor's cache, products of whole matrices are three times as fast, forward and backward together.
"""

from typing import Any

import torch

SHORT_SCORES = 16_384
"""Queries x keys of a head up to which matrix products win; measured at about 30,000."""


class _ShortAttention(torch.autograd.Function):
    """Keeps the attention weights in the compute dtype; scores, softmax and its gradient are in fp32."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BHTD: torch.Tensor,
        key_BGKD: torch.Tensor,
        value_BGKD: torch.Tensor,
        bias_TK: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        batch, heads, length, size = query_BHTD.shape
        groups, keys = key_BGKD.shape[1:3]
        per_group = heads // groups
        # The heads of a group stand below each other: one product with the keys that they share.
        query = query_BHTD.reshape(batch * groups, per_group * length, size)
        key, value = (states.reshape(batch * groups, keys, size) for states in (key_BGKD, value_BGKD))
        bias = bias_TK.repeat(per_group, 1)
        weights = torch.baddbmm(bias, query.float(), key.float().mT, alpha=scaling).softmax(-1).to(query.dtype)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scaling = scaling
        return torch.bmm(weights, value).view(batch, heads, length, size)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        batch, heads, length, size = grads[0].shape
        grad = grads[0].reshape(query.shape)
        value_grad = torch.bmm(weights.mT, grad)
        scores_grad = torch.bmm(grad, value.mT).float()
        scores_grad *= weights
        scores_grad -= weights * scores_grad.sum(-1, keepdim=True)
        scores_grad = scores_grad.mul_(ctx.scaling).to(query.dtype)
        query_grad = torch.bmm(scores_grad, key).view(batch, heads, length, size)
        key_grad = torch.bmm(scores_grad.mT, query)
        grouped = (batch, -1, *key.shape[1:])
        return query_grad, key_grad.view(grouped), value_grad.view(grouped), None, None


def short_attention(
    query_BHTD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKD: torch.Tensor,
    mask_TK: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Return softmax(scaling x query key^T) value, [B, H, T, D]; each of G groups of heads has its own keys and values.

    mask_TK: which keys a query sees; None = causal order of equally many queries and keys.
    """
    length, keys = query_BHTD.shape[2], key_BGKD.shape[2]
    if mask_TK is None:
        mask_TK = torch.ones(length, keys, dtype=torch.bool).tril()
    bias_TK = torch.zeros(length, keys).masked_fill_(~mask_TK, -torch.inf)
    attended: torch.Tensor = _ShortAttention.apply(query_BHTD, key_BGKD, value_BGKD, bias_TK, scaling)  # type: ignore[no-untyped-call]
    return attended
