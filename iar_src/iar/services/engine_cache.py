"""What makes decoding fast on a CPU: a cache that grows in blocks, attention without copies of keys, kept memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from transformers.cache_utils import DynamicLayer

from iar.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache

BLOCK = 32
"""Columns a cache grows by: most steps write in place, and what attention reads stays contiguous."""

ATTENTION = "iar_grouped"
PLAIN_ATTENTION = frozenset(("llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"))
"""Model types whose attention is softmax(q k) v and nothing else: no caps, no sinks."""


class BlockLayer(DynamicLayer):
    """Keys and values of one layer, [rows, heads, capacity, head size]; the first `used` columns count.

    Attention runs over the whole capacity: the columns to come are zero, and causally masked.
    """

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = 0

    def update(
        self, key_states: "torch.Tensor", value_states: "torch.Tensor", *args: Any, **kwargs: Any
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Append columns, [rows, heads, new, head size]; return all keys and values."""
        end = self.used + key_states.shape[2]
        if not self.is_initialized:
            self.hold(_widened(key_states, _capacity(end)), _widened(value_states, _capacity(end)), end)
            return self.keys, self.values
        if end > self.keys.shape[2]:
            self.keys, self.values = _widened(self.keys, _capacity(end)), _widened(self.values, _capacity(end))
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys, self.values

    def hold(self, keys: "torch.Tensor", values: "torch.Tensor", used: int) -> None:
        """Take over whole buffers, zero behind the first `used` columns."""
        self.keys, self.values, self.used = keys, values, used
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def get_seq_length(self) -> int:
        """Columns written so far."""
        return self.used

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns attention will see, and the index of the first."""
        return _capacity(self.used + query_length), 0


def _capacity(columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK


def _widened(states: "torch.Tensor", capacity: int) -> "torch.Tensor":
    from torch.nn.functional import pad

    return pad(states, (0, 0, 0, capacity - states.shape[2]))


def new_cache(model: "PreTrainedModel") -> "DynamicCache":
    """Return an empty cache. Raises UserError for a model whose memory is not keys and values alone."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    strange = next((layer for layer in cache.layers if not isinstance(layer, DynamicLayer)), None)
    if strange is not None:
        raise UserError(
            f"model.source: {model.config.model_type} has layers of kind {type(strange).__name__}, which the engine "
            "cannot decode; use a model with plain attention layers"
        )
    cache.layers = [BlockLayer() for _ in cache.layers]
    return cache


def repeat_rows(model: "PreTrainedModel", cache: "DynamicCache", rows: int) -> "DynamicCache":
    """Return a cache that holds the one row of `cache` `rows` times."""
    repeated = new_cache(model)
    for layer, source in zip(_blocks(repeated), _blocks(cache), strict=True):
        keys, values = source.keys[:, :, : source.used], source.values[:, :, : source.used]
        layer.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1))
    return repeated


def join_caches(model: "PreTrainedModel", parts: "Sequence[tuple[DynamicCache, torch.Tensor, int]]") -> "DynamicCache":
    """Return one cache of the rows of all parts, (cache, rows kept, leading columns dropped), aligned at the end."""
    joined = new_cache(model)
    for number, layer in enumerate(_blocks(joined)):
        sources = [(_blocks(cache)[number], rows, skip) for cache, rows, skip in parts]
        used = max(source.used - skip for source, _, skip in sources)
        keys = _join([(source.keys, source.used, rows, skip) for source, rows, skip in sources], used)
        values = _join([(source.values, source.used, rows, skip) for source, rows, skip in sources], used)
        layer.hold(keys, values, used)
        for source, _, _ in sources:
            # Freed layer by layer: the old and the new cache never stand whole side by side.
            source.keys = source.values = None
    return joined


def _blocks(cache: "DynamicCache") -> list[BlockLayer]:
    return cast(list[BlockLayer], cache.layers)


def _join(parts: "Sequence[tuple[torch.Tensor, int, torch.Tensor, int]]", used: int) -> "torch.Tensor":
    first = parts[0][0]
    count = sum(len(rows) for _, _, rows, _ in parts)
    joined = first.new_zeros(count, first.shape[1], _capacity(used), first.shape[3])
    start = 0
    for states, end, rows, skip in parts:
        joined[start : start + len(rows), :, used - (end - skip) : used] = states[rows, :, skip:end]
        start += len(rows)
    return joined


def grouped_attention(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    scaling: float,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """Attention with queries [rows, heads, new, size] over keys [rows, key heads, columns, size]; softmax in fp32.

    In a step, the query heads that share a key head become rows of one product: keys are never
    repeated in memory. With many new columns torch's own kernel is several times as fast.
    """
    import torch

    if query.shape[2] > 1:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2), None
    rows, heads, new, size = query.shape
    key_heads = key.shape[1]
    grouped = query.reshape(rows, key_heads, heads // key_heads * new, size)
    weights = (torch.matmul(grouped, key.transpose(2, 3)) * scaling).view(rows, key_heads, -1, new, key.shape[2])
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, None]
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.matmul(weights.view(rows, key_heads, -1, key.shape[2]), value)
    return mixed.view(rows, heads, new, size).transpose(1, 2), None


def attention_for(model_type: str, on_gpu: bool) -> str | None:
    """Return the name of the attention implementation to load a model with; None = transformers' choice for it."""
    if on_gpu or model_type not in PLAIN_ATTENTION:
        return None
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(ATTENTION, grouped_attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    return ATTENTION
