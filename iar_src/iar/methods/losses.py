"""The per-example mean loss, computed on target positions only and a chunk of logits at a time."""

from typing import Any

import torch
from torch.nn import functional

CHUNK_POSITIONS = 512


class _TargetLoss(torch.autograd.Function):
    """Weighted sum of cross entropies of `hidden_PD @ weight_VD.T`; the gradients are formed with the loss,
    chunk by chunk, so that no more than CHUNK_POSITIONS x V logits exist at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PD: torch.Tensor,
        weight_VD: torch.Tensor,
        targets_P: torch.Tensor,
        weights_P: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        nll_P = torch.empty(len(targets_P), dtype=torch.float32, device=hidden_PD.device)
        hidden_grad_PD = torch.empty_like(hidden_PD)
        trained = ctx.needs_input_grad[1]
        weight_grad_VD: torch.Tensor | None = None
        for start in range(0, len(targets_P), CHUNK_POSITIONS):
            chunk = slice(start, start + CHUNK_POSITIONS)
            logits_CV = functional.linear(hidden_PD[chunk], weight_VD).float()
            log_total_C = torch.logsumexp(logits_CV, dim=-1, keepdim=True)
            target_C1 = targets_P[chunk, None]
            nll_P[chunk] = (log_total_C - logits_CV.gather(1, target_C1)).squeeze(1)
            grad_CV = logits_CV.sub_(log_total_C).exp_()
            grad_CV.scatter_add_(1, target_C1, grad_CV.new_full(target_C1.shape, -1.0))
            grad_CV = grad_CV.mul_(weights_P[chunk, None]).to(hidden_PD.dtype)
            hidden_grad_PD[chunk] = grad_CV @ weight_VD
            if trained:
                part_VD = (grad_CV.t() @ hidden_PD[chunk]).float()
                weight_grad_VD = part_VD if weight_grad_VD is None else weight_grad_VD.add_(part_VD)
        ctx.save_for_backward(hidden_grad_PD, None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype))
        ctx.mark_non_differentiable(nll_P)
        return (nll_P * weights_P).sum(), nll_P

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # In place: a copy of a gradient as large as the head costs more than the product. A second backward
        # through the same graph would find its tensors changed, and torch refuses it.
        scaled = [None if grad is None else grad.mul_(grads[0].to(grad.dtype)) for grad in ctx.saved_tensors]
        return *scaled, None, None


def target_loss(
    hidden_PD: torch.Tensor, weight_VD: torch.Tensor, targets_P: torch.Tensor, weights_P: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (sum of weight x negative log likelihood, the likelihoods in nats a position).

    hidden_PD: the hidden states that predict the P target tokens; weight_VD: the output head;
    targets_P: token ids; weights_P: fp32, `1 / (|y| x rows in the step)` for each target token, which makes
    the sum over all micro-batches of a step the mean over examples of the mean over target tokens.
    """
    loss, nll_P = _TargetLoss.apply(hidden_PD, weight_VD, targets_P, weights_P)  # type: ignore[no-untyped-call]
    return loss, nll_P
