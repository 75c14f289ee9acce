"""Rows of one forward pass as one flat sequence: no padding, and what all rows begin with is computed once.

The linear layers see N = S + R tokens: the S shared ones, then the rest of each row. Attention sees each row
alone, behind the shared tokens. Numbers equal those of every row by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.methods.batching import TokenRow

if TYPE_CHECKING:
    import torch

ATTENTION = "iar_packed"


@dataclass(frozen=True)
class Packing:
    """Where the rows lie in the flat sequence.

    padded_BT: for each of B rows the flat indices of its rest, the last one repeated up to the longest rest T;
    places_R: where each token of the rests stands in the flattened B x T.
    """

    shared: int
    padded_BT: "torch.Tensor"
    places_R: "torch.Tensor"
    _masks: "dict[int | None, torch.Tensor | None]" = field(default_factory=dict)

    def mask(self, window: int | None) -> "torch.Tensor | None":
        """Return which of the S + T keys each of T queries sees, [T, S + T]; None where plain causal order says it."""
        import torch

        if window not in self._masks:
            length = self.padded_BT.shape[1]
            ones = torch.ones(length, self.shared + length, dtype=torch.bool, device=self.padded_BT.device)
            seen = ones.tril(self.shared)
            if window:
                seen = seen.triu(self.shared - window + 1)
            self._masks[window] = seen if self.shared or window else None
        return self._masks[window]


@dataclass(frozen=True)
class PackedBatch:
    """Flat token ids and positions, both [1, N]; the P states that predict a target, the targets, their weights."""

    ids_1N: "torch.Tensor"
    position_ids_1N: "torch.Tensor"
    packing: Packing
    states_P: "torch.Tensor"
    targets_P: "torch.Tensor"
    weights_P: "torch.Tensor"


def pack_rows(rows: Sequence[TokenRow], rows_in_step: int, device: "torch.device") -> PackedBatch:
    """Return the rows as one flat sequence.

    The state at t predicts the token at t+1, so a row's states are those of its prompt's last token up
    to its last but one; each weighs 1 / (target length x rows in the step).
    """
    import torch

    shared = shared_prefix(rows)
    ids, positions = list(shared), list(range(len(shared)))
    states: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    rests: list[range] = []
    for row in rows:
        first_state = len(ids) + row.prompt_length - 1 - len(shared)
        states.extend(range(first_state, first_state + row.target_length))
        targets.extend(row.token_ids[row.prompt_length :])
        weights.extend([1.0 / (row.target_length * rows_in_step)] * row.target_length)
        rests.append(range(len(ids), len(ids) + len(row.token_ids) - len(shared)))
        ids.extend(row.token_ids[len(shared) :])
        positions.extend(range(len(shared), len(row.token_ids)))
    longest = max(map(len, rests))
    padded = [[*rest, *[rest[-1]] * (longest - len(rest))] for rest in rests]
    places = [number * longest + place for number, rest in enumerate(rests) for place in range(len(rest))]
    return PackedBatch(
        ids_1N=torch.tensor([ids], device=device),
        position_ids_1N=torch.tensor([positions], device=device),
        packing=Packing(len(shared), torch.tensor(padded, device=device), torch.tensor(places, device=device)),
        states_P=torch.tensor(states, device=device),
        targets_P=torch.tensor(targets, device=device),
        weights_P=torch.tensor(weights, dtype=torch.float32, device=device),
    )


def shared_prefix(rows: Sequence[TokenRow]) -> tuple[int, ...]:
    """Return the tokens all prompts begin with, at least the last one of each prompt left over."""
    if len(rows) < 2:
        return ()
    prompts = [row.token_ids[: row.prompt_length - 1] for row in rows]
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False)))


def packed_attention(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    scaling: float,
    packing: Packing,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: "torch.Tensor | None" = None,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """Attention of each row to itself and the shared tokens; query, key, value [1, heads, N, size]."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if softcap is not None or s_aux is not None:
        raise UserError(
            f"model.source: {type(module).__name__} caps its attention or has sinks, which training does not "
            "support; use a model with plain attention layers"
        )
    shared = packing.shared
    rows, longest = packing.padded_BT.shape
    flat = packing.padded_BT.flatten()

    def padded(states_1HND: "torch.Tensor") -> "torch.Tensor":
        states_NHD = states_1HND[0].transpose(0, 1)
        rests = states_NHD.index_select(0, flat).view(rows, longest, *states_NHD.shape[1:])
        return rests.transpose(1, 2)

    def behind_shared(states_1HND: "torch.Tensor") -> "torch.Tensor":
        if not shared:
            return padded(states_1HND)
        return torch.cat([states_1HND[:, :, :shared].expand(rows, -1, -1, -1), padded(states_1HND)], dim=2)

    mask = packing.mask(sliding_window)
    mixed_BHTD = scaled_dot_product_attention(
        padded(query),
        behind_shared(key),
        behind_shared(value),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=True,
    )
    mixed_1RHD = mixed_BHTD.transpose(1, 2).flatten(0, 1).index_select(0, packing.places_R)[None]
    if not shared:
        return mixed_1RHD, None
    query, key, value = query[:, :, :shared], key[:, :, :shared], value[:, :, :shared]
    mixed_1HSD = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return torch.cat([mixed_1HSD.transpose(1, 2), mixed_1RHD], dim=1), None


def register_attention() -> str:
    """Make the attention known to transformers and return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    return ATTENTION


def _no_mask(*_: Any, **__: Any) -> None:
    """The packing says who sees whom."""
