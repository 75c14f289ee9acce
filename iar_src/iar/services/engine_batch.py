"""The rows that a model answers at once, and what is done to them: prefill, one step, join."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from iar.records import EvalItem
from iar.services.engine_cache import join_caches, new_cache, repeat_rows


@dataclass
class Row:
    """A prompt being answered: its tokens, and what has been produced, the end token not included."""

    item: EvalItem
    prompt: list[int]
    produced: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def finished(self) -> bool:
        """True when the model ended its turn or the limit is reached."""
        return self.ended or len(self.produced) >= self.item.max_new_tokens


@dataclass
class Batch:
    """Rows with their cache. `mask` [rows, cached columns] is 0 where a column is that row's padding.

    `tokens` [rows, 1] is what each row says next, at `positions` [rows, 1].
    """

    rows: list[Row]
    cache: DynamicCache
    mask: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor

    @property
    def unfinished(self) -> list[int]:
        """Indices of the rows that still go on."""
        return [index for index, row in enumerate(self.rows) if not row.finished]


class Decoder:
    """Runs batches through a model; `end_ids` are the tokens that end a turn."""

    def __init__(self, model: PreTrainedModel, end_ids: frozenset[int]) -> None:
        self._model = model
        self._end_ids = end_ids

    @torch.inference_mode()
    def prefix(self, token_ids: Sequence[int]) -> DynamicCache:
        """Return the cache, of one row, of tokens that every prompt begins with."""
        cache = new_cache(self._model)
        if token_ids:
            ids = torch.tensor([token_ids], device=self._model.device)
            self._forward(ids, torch.ones_like(ids), torch.arange(ids.shape[1], device=ids.device)[None], cache)
        return cache

    @torch.inference_mode()
    def prefill(self, rows: list[Row], prefix: DynamicCache) -> Batch:
        """Read the prompts of `rows` behind the shared prefix and append the first token of each reply."""
        shared = prefix.get_seq_length()
        width = max(len(row.prompt) for row in rows) - shared
        padding = [shared + width - len(row.prompt) for row in rows]
        ids = torch.tensor([[0] * short + row.prompt[shared:] for row, short in zip(rows, padding, strict=True)])
        mask = torch.ones(len(rows), shared + width, dtype=torch.long)
        for row_mask, short in zip(mask, padding, strict=True):
            row_mask[shared : shared + short] = 0
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        positions = (mask.cumsum(1) - 1)[:, shared:].clamp(min=0)

        cache = repeat_rows(self._model, prefix, len(rows)) if shared else new_cache(self._model)
        tokens = self._forward(ids, mask, positions, cache)
        self._append(rows, tokens)
        return Batch(rows, cache, mask, tokens, positions[:, -1:] + 1)

    @torch.inference_mode()
    def step(self, batch: Batch) -> list[Row]:
        """Produce one more token in every row; return the rows that finished by it."""
        batch.mask = pad(batch.mask, (0, 1), value=1)
        batch.tokens = self._forward(batch.tokens, batch.mask, batch.positions, batch.cache)
        batch.positions = batch.positions + 1
        return self._append(batch.rows, batch.tokens)

    @torch.inference_mode()
    def join(self, batches: Sequence[Batch]) -> Batch:
        """Return one batch of the unfinished rows of all; their caches move into it."""
        kept = [torch.tensor(batch.unfinished, device=self._model.device) for batch in batches]
        pairs = [(batch, rows) for batch, rows in zip(batches, kept, strict=True) if len(rows)]
        masks = [_without_empty_columns(batch.mask[rows]) for batch, rows in pairs]
        parts = [
            (batch.cache, rows, batch.mask.shape[1] - mask.shape[1])
            for (batch, rows), mask in zip(pairs, masks, strict=True)
        ]
        used = max(mask.shape[1] for mask in masks)
        return Batch(
            rows=[batch.rows[index] for batch, rows in pairs for index in rows.tolist()],
            cache=join_caches(self._model, parts),
            mask=torch.cat([pad(mask, (used - mask.shape[1], 0)) for mask in masks]),
            tokens=torch.cat([batch.tokens[rows] for batch, rows in pairs]),
            positions=torch.cat([batch.positions[rows] for batch, rows in pairs]),
        )

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Return the likeliest next token of each row, [rows, 1]; the cache grows by the columns of `ids`."""
        columns, _ = cache.get_mask_sizes(ids.shape[1], 0)
        output = self._model(
            input_ids=ids,
            attention_mask=pad(mask, (0, columns - mask.shape[1]), value=1),
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        # On a CPU, max is ten times as fast as argmax over bf16.
        tokens: torch.Tensor = output.logits[:, -1].max(dim=-1, keepdim=True).indices
        return tokens

    def _append(self, rows: Sequence[Row], tokens: torch.Tensor) -> list[Row]:
        going = [(row, token) for row, token in zip(rows, tokens[:, 0].tolist(), strict=True) if not row.finished]
        for row, token in going:
            if token in self._end_ids:
                row.ended = True
            else:
                row.produced.append(token)
        return [row for row, _ in going if row.finished]


def _without_empty_columns(mask: torch.Tensor) -> torch.Tensor:
    """Drop the leading columns that are padding in every row."""
    return mask[:, int(mask.any(dim=0).int().argmax()) :]
