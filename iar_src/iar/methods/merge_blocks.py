"""Tensors block by block: slices of flat checkpoint tensors in fp32, with the random draws that belong to them.

A block has the same values and draws however a tensor is cut, so a merge of blocks gives the bits of a merge at once.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

BLOCK_ELEMENTS = 1 << 18  # 1 MiB in fp32: in smaller ones the interpreter takes longer than the arithmetic


@dataclass(frozen=True)
class Block:
    """A slice of a flattened tensor pair in fp32; `uniform` holds one draw from [0, 1) for each element.

    `others` are (delta, uniform) of further tuned checkpoints; `earlier` are the deltas of what theta_1 was after each
    earlier document set, the oldest first.
    """

    start: int
    theta_0: torch.Tensor
    theta_1: torch.Tensor
    delta: torch.Tensor
    uniform: torch.Tensor
    others: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    earlier: tuple[torch.Tensor, ...] = ()


def paired_blocks(theta_0: torch.Tensor, theta_1: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield (flat start index, theta_0 slice, theta_1 slice), flat and in fp32."""
    flat_0, flat_1 = theta_0.reshape(-1), theta_1.reshape(-1)
    for start in range(0, len(flat_0), BLOCK_ELEMENTS):
        stop = start + BLOCK_ELEMENTS
        yield start, flat_0[start:stop].float(), flat_1[start:stop].float()


def read_block(
    theta_0: torch.Tensor,
    tuned: Sequence[torch.Tensor],
    span: slice,
    name: str,
    seed: int | None,
    device: str = "cpu",
    earlier: Sequence[torch.Tensor] = (),
) -> Block:
    """Return a slice of flat theta_0, its tuned and earlier tensors, on `device`; without a seed there are no draws.

    The first draws of a tensor are the same whether one checkpoint is merged or several.
    """
    first = theta_0[span].to(device, torch.float32)
    others = []
    for number, tensor in enumerate(tuned):
        own = name if number == 0 else f"{name}#{number}"
        draws = first[:0]
        if seed is not None:
            drawn = uniform_draws(seed, own, span.start).random(len(first), dtype=np.float32)
            draws = torch.from_numpy(drawn).to(device)
        others.append((tensor[span].to(device, torch.float32) - first, draws))
    second = tuned[0][span].to(device, torch.float32)
    before = tuple(tensor[span].to(device, torch.float32) - first for tensor in earlier)
    return Block(span.start, first, second, *others[0], tuple(others[1:]), before)


def uniform_draws(seed: int, name: str, start: int = 0) -> np.random.Generator:
    """Return the generator of tensor `name` from flat index `start`, an even number, on.

    An element has the same draw however many tensors, drop rates or blocks there are: two of fp32 are one step.
    """
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key, "big")).advance(start // 2))
