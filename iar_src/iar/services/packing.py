"""Rows of one forward pass as one flat sequence: no padding, and what all rows begin with is computed once.

The linear layers see N = S + R tokens: the S shared ones, then the rest of each row. Attention sees each row
alone, behind the shared tokens. Numbers equal those of every row by itself. Without packing the rows stand below
each other, padded at the end, where causal order keeps the padding unseen.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.methods.batching import TokenRow

if TYPE_CHECKING:
    import torch

ATTENTION = "iar_packed"
Kernel = Callable[..., "torch.Tensor"]


@dataclass(frozen=True)
class Packing:
    """Where the rows lie in the flat sequence.

    padded_BT: for each of B rows the flat indices of its rest, the last one repeated up to the longest rest T;
    places_R: where each token of the rests, and of the filler behind them, stands in the flattened B x T;
    lengths_B: tokens of each rest.
    """

    shared: int
    padded_BT: "torch.Tensor"
    places_R: "torch.Tensor"
    lengths_B: tuple[int, ...]
    _masks: "dict[int | None, torch.Tensor | None]" = field(default_factory=dict)

    def mask(self, window: int | None) -> "torch.Tensor | None":
        """Return which of the S + T keys each of T queries sees, [T, S + T]; None where plain causal order says it."""
        import torch

        if window not in self._masks:
            length = self.padded_BT.shape[1]
            ones = torch.ones(length, self.shared + length, dtype=torch.bool, device=self.padded_BT.device)
            slides = window is not None and window < self.shared + length
            seen = ones.tril(self.shared)
            if window is not None and slides:
                seen = seen.triu(self.shared - window + 1)
            self._masks[window] = seen if self.shared or slides else None
        return self._masks[window]

    def shared_mask(self, window: int | None) -> "torch.Tensor | None":
        """Return the same for the shared tokens among themselves, [S, S]."""
        if window is None or window >= self.shared:
            return None
        import torch

        ones = torch.ones(self.shared, self.shared, dtype=torch.bool, device=self.padded_BT.device)
        return ones.tril().triu(1 - window)

    @cached_property
    def spans(self) -> "Spans":
        """Return the same as a kernel for rows of unlike lengths wants it."""
        import torch

        device = self.padded_BT.device
        ends = list(accumulate(self.lengths_B, initial=self.shared))
        keys: list[int] = []
        for start, end in pairwise(ends):
            keys += [*range(self.shared), *range(start, end)]
        key_ends = accumulate((self.shared + length for length in self.lengths_B), initial=0)
        return Spans(
            query_ends=torch.tensor([end - self.shared for end in ends], dtype=torch.int32, device=device),
            key_ends=torch.tensor(list(key_ends), dtype=torch.int32, device=device),
            keys_K=torch.tensor(keys, device=device) if self.shared else None,
            longest=max(self.lengths_B),
        )


@dataclass(frozen=True)
class Spans:
    """Running ends of each row's queries and keys, from 0; keys_K: flat indices of all rows' keys, None = as they lie.

    A row's queries are its rest, `longest` at most; its keys are the shared tokens and the rest.
    """

    query_ends: "torch.Tensor"
    key_ends: "torch.Tensor"
    keys_K: "torch.Tensor | None"
    longest: int


@dataclass(frozen=True)
class PackedBatch:
    """Flat token ids and positions, both [1, N]; the P states that predict a target, the targets, their weights.

    A target of weight 0 is filler.
    """

    ids_1N: "torch.Tensor"
    position_ids_1N: "torch.Tensor"
    packing: Packing
    states_P: "torch.Tensor"
    targets_P: "torch.Tensor"
    weights_P: "torch.Tensor"

    @property
    def inputs(self) -> dict[str, Any]:
        """What the decoder is called with; the P states index its output without the batch dimension."""
        return {"input_ids": self.ids_1N, "position_ids": self.position_ids_1N, "packing": self.packing}

    @property
    def positions(self) -> int:
        """Tokens that the linear layers compute."""
        return self.ids_1N.numel()


@dataclass(frozen=True)
class PaddedBatch:
    """Token ids [B, T], short rows filled with their last token; states, targets and weights as in PackedBatch."""

    ids_BT: "torch.Tensor"
    states_P: "torch.Tensor"
    targets_P: "torch.Tensor"
    weights_P: "torch.Tensor"

    @property
    def inputs(self) -> dict[str, Any]:
        """What the decoder is called with; the P states index its output with B and T flattened."""
        return {"input_ids": self.ids_BT}

    @property
    def positions(self) -> int:
        """Tokens that the linear layers compute."""
        return self.ids_BT.numel()


Batch = PackedBatch | PaddedBatch


def pad_rows(rows: Sequence[TokenRow], rows_in_step: int, device: "torch.device", multiple: int = 1) -> PaddedBatch:
    """Return the rows below each other; each target token weighs 1 / (target length x rows in the step).

    They are filled up to a `multiple` of tokens.
    """
    import torch

    longest = round_up(max(len(row.token_ids) for row in rows), multiple)
    states: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    for number, row in enumerate(rows):
        first_state = number * longest + row.prompt_length - 1
        states.extend(range(first_state, first_state + row.target_length))
        targets.extend(row.token_ids[row.prompt_length :])
        weights.extend([1.0 / (row.target_length * rows_in_step)] * row.target_length)
    _fill_targets(states, targets, weights, multiple)
    ids = [[*row.token_ids, *row.token_ids[-1:] * (longest - len(row.token_ids))] for row in rows]
    return PaddedBatch(
        ids_BT=torch.tensor(ids, device=device),
        states_P=torch.tensor(states, device=device),
        targets_P=torch.tensor(targets, device=device),
        weights_P=torch.tensor(weights, dtype=torch.float32, device=device),
    )


def pack_rows(rows: Sequence[TokenRow], rows_in_step: int, device: "torch.device", multiple: int = 1) -> PackedBatch:
    """Return the rows as one flat sequence.

    The state at t predicts the token at t+1, so a row's states are those of its prompt's last token up
    to its last but one; each weighs 1 / (target length x rows in the step).
    The sequence, and the rows that attention sees, are filled up to a `multiple` of tokens, which nothing depends on.
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
    longest = round_up(max(map(len, rests)), multiple)
    padded = [[*rest, *[rest[-1]] * (longest - len(rest))] for rest in rests]
    places = [number * longest + place for number, rest in enumerate(rests) for place in range(len(rest))]
    filler = round_up(len(ids), multiple) - len(ids)
    for listed in (ids, positions, places):
        listed.extend(listed[-1:] * filler)
    _fill_targets(states, targets, weights, multiple)
    return PackedBatch(
        ids_1N=torch.tensor([ids], device=device),
        position_ids_1N=torch.tensor([positions], device=device),
        packing=Packing(
            len(shared),
            torch.tensor(padded, device=device),
            torch.tensor(places, device=device),
            tuple(map(len, rests)),
        ),
        states_P=torch.tensor(states, device=device),
        targets_P=torch.tensor(targets, device=device),
        weights_P=torch.tensor(weights, dtype=torch.float32, device=device),
    )


def _fill_targets(states: list[int], targets: list[int], weights: list[float], multiple: int) -> None:
    """Repeat the last target up to a `multiple`, weightless."""
    filler = round_up(len(states), multiple) - len(states)
    states.extend(states[-1:] * filler)
    targets.extend(targets[-1:] * filler)
    weights.extend([0.0] * filler)


def round_up(count: int, multiple: int) -> int:
    """Return the least multiple that is no less than `count`."""
    return -(-count // multiple) * multiple


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

    if softcap is not None or s_aux is not None:
        raise UserError(
            f"model.source: {type(module).__name__} caps its attention or has sinks, which training does not "
            "support; use a model with plain attention layers"
        )
    kernel = flash_attention() if query.is_cuda and query.dtype != torch.float32 else None
    if kernel is not None:
        return varlen_attention(kernel, query, key, value, scaling, packing, sliding_window), None
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

    mixed_BHTD = attend(padded(query), behind_shared(key), behind_shared(value), packing.mask(sliding_window), scaling)
    mixed_1RHD = mixed_BHTD.transpose(1, 2).flatten(0, 1).index_select(0, packing.places_R)[None]
    if not shared:
        return mixed_1RHD, None
    query, key, value = query[:, :, :shared], key[:, :, :shared], value[:, :, :shared]
    mixed_1HSD = attend(query, key, value, packing.shared_mask(sliding_window), scaling)
    return torch.cat([mixed_1HSD.transpose(1, 2), mixed_1RHD], dim=1), None


def attend(
    query_BHTD: "torch.Tensor",
    key_BGKD: "torch.Tensor",
    value_BGKD: "torch.Tensor",
    mask_TK: "torch.Tensor | None",
    scaling: float,
) -> "torch.Tensor":
    """Return the attention of H heads to G groups of keys, [B, H, T, D]; no mask = causal order."""
    from torch.nn.functional import scaled_dot_product_attention

    from iar.methods.attention import SHORT_SCORES, short_attention

    scores = query_BHTD.shape[2] * key_BGKD.shape[2]
    if query_BHTD.requires_grad and query_BHTD.device.type == "cpu" and scores <= SHORT_SCORES:
        return short_attention(query_BHTD, key_BGKD, value_BGKD, mask_TK, scaling)
    grouped = takes_groups(query_BHTD, key_BGKD, value_BGKD, mask_TK)
    if not grouped:
        per_group = query_BHTD.shape[1] // key_BGKD.shape[1]
        key_BGKD, value_BGKD = (states.repeat_interleave(per_group, dim=1) for states in (key_BGKD, value_BGKD))
    return scaled_dot_product_attention(
        query_BHTD,
        key_BGKD,
        value_BGKD,
        attn_mask=mask_TK,
        is_causal=mask_TK is None,
        scale=scaling,
        enable_gqa=grouped,
    )


def takes_groups(
    query_BHTD: "torch.Tensor", key_BGKD: "torch.Tensor", value_BGKD: "torch.Tensor", mask_TK: "torch.Tensor | None"
) -> bool:
    """Whether torch has a kernel with fewer key heads than query heads for these; else keys have to be repeated.

    On a GPU the flash kernel takes groups, but neither a mask nor fp32; the memory-efficient one takes both and, by
    version, no groups. Where neither can, torch computes all scores of all heads at once, which takes several times
    the memory of a training. torch is asked for these two alone: it tries them before that one, cuDNN's not always.
    """
    if not query_BHTD.is_cuda:
        return True
    from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

    call = SDPAParams(query_BHTD, key_BGKD, value_BGKD, mask_TK, 0.0, mask_TK is None, True)
    return can_use_flash_attention(call) or can_use_efficient_attention(call)


@cache
def flash_attention() -> Kernel | None:
    """Return FlashAttention's kernel for rows of unlike lengths, None where the package is not installed."""
    if importlib.util.find_spec("flash_attn") is None:
        return None
    kernel: Kernel = importlib.import_module("flash_attn").flash_attn_varlen_func
    return kernel


def varlen_attention(
    kernel: Kernel,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    scaling: float,
    packing: Packing,
    sliding_window: int | None,
) -> "torch.Tensor":
    """The same as `packed_attention` without padding: `kernel` aligns causal order at the ends of queries and keys."""
    import torch

    spans, shared = packing.spans, packing.shared
    query_NHD, key_NHD, value_NHD = (states[0].transpose(0, 1) for states in (query, key, value))
    window = (sliding_window - 1, 0) if sliding_window else (-1, -1)
    keys, values = key_NHD, value_NHD
    if spans.keys_K is not None:
        keys, values = key_NHD.index_select(0, spans.keys_K), value_NHD.index_select(0, spans.keys_K)
    options = {"softmax_scale": scaling, "causal": True, "window_size": window}
    mixed_RHD = kernel(
        query_NHD[shared:].contiguous(), keys.contiguous(), values.contiguous(),
        spans.query_ends, spans.key_ends, spans.longest, shared + spans.longest, **options,
    )  # fmt: skip
    if not shared:
        return mixed_RHD[None]
    ends = spans.query_ends.new_tensor([0, shared])
    beginning = (states[:shared].contiguous() for states in (query_NHD, key_NHD, value_NHD))
    mixed_SHD = kernel(*beginning, ends, ends, shared, shared, **options)
    return torch.cat([mixed_SHD, mixed_RHD])[None]


def register_attention() -> str:
    """Make the attention known to transformers and return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    return ATTENTION


def _no_mask(*_: Any, **__: Any) -> None:
    """The packing says who sees whom."""
