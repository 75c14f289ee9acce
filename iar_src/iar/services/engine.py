"""Greedy generation: rows of one batch finish on their own, waiting prompts take their places."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from iar.methods.chat import encode_prompt, end_of_turn
from iar.records import EvalItem, Reply
from iar.services.engine_prompts import check_room, end_ids
from iar.services.hardware import ComputeDtype, compute_dtype
from iar.services.models import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache

    from iar.services.engine_batch import Batch, Row

PREFILL_TOKENS = 2048
"""Padded prompt tokens in one forward pass: enough for full speed, and bounded intermediates."""

MIN_PREFIX = 8
"""Shared prompt tokens below which it does not pay to compute them apart."""

REFILL_SHARE = 0.25
"""Share of finished rows at which a batch is rebuilt: rebuilding copies the cache of the others."""


class Engine:
    """A checkpoint ready to answer, on the GPU where there is one; `dtype` as in hardware.compute_dtype."""

    def __init__(
        self, checkpoint: Path, system_turn: str | None = None, batch_size: int = 64, dtype: ComputeDtype = "auto"
    ) -> None:
        """Load the model of a Hugging Face folder. Raises UserError for one that cannot chat or be decoded here."""
        from iar.services.engine_batch import Decoder

        self._tokenizer = load_tokenizer(checkpoint)
        self._model = _load_model(checkpoint, dtype)
        self._system_turn = system_turn
        self._batch_size = batch_size
        self._decoder = Decoder(self._model, end_ids(self._model.generation_config, end_of_turn(self._tokenizer)))

    def generate(
        self, items: Sequence[EvalItem], on_progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Reply]:
        """Yield a reply an item, in the order they finish; `on_progress(finished, all)` follows each.

        The same items in the same order give the same replies. Raises UserError for a prompt that
        leaves no room for its reply in the model's positions.
        """
        waiting = self._waiting(items)
        prefix = self._decoder.prefix(_shared_prefix(waiting, self._model))
        batch: Batch | None = None
        done = 0
        while waiting or batch:
            batch, finished = self._advance(batch, waiting, prefix)
            for row in finished:
                yield self._reply(row)
                done += 1
                if on_progress:
                    on_progress(done, len(items))

    def bits(self, texts: Sequence[str]) -> list[float]:
        """Return the bits of each text: the sum of -log2 p over its tokens, read as the beginning of a document.

        A text longer than the model's positions is read in parts, each behind the last token of the one before.
        """
        from iar.services.engine_bits import text_bits

        return text_bits(self._model, self._tokenizer, texts)

    def _waiting(self, items: Sequence[EvalItem]) -> "deque[Row]":
        """Return rows in the order they are taken: long replies first, so that short ones fill the end."""
        from iar.services.engine_batch import Row

        rows = [Row(item, encode_prompt(self._tokenizer, item.prompt, self._system_turn)) for item in items]
        room = getattr(self._model.config, "max_position_embeddings", None)
        for row in rows:
            check_room(row.item, len(row.prompt), room)
        return deque(sorted(rows, key=lambda row: (-row.item.max_new_tokens, -len(row.prompt))))

    def _advance(
        self, batch: "Batch | None", waiting: "deque[Row]", prefix: "DynamicCache"
    ) -> "tuple[Batch | None, list[Row]]":
        """Return the batch after one step, or rebuilt with new rows, and the rows that finished by it."""
        going = len(batch.unfinished) if batch else 0
        if batch and len(batch.rows) - going < REFILL_SHARE * len(batch.rows):
            return batch, self._decoder.step(batch)
        count = min(len(waiting), self._batch_size - going)
        admitted = [waiting.popleft() for _ in range(count)]
        shared = prefix.get_seq_length()
        fresh = [self._decoder.prefill(rows, prefix) for rows in _prefill_groups(admitted, shared)]
        batches = [one for one in (batch, *fresh) if one and one.unfinished]
        finished = [row for row in admitted if row.finished]
        return (self._decoder.join(batches) if batches else None), finished

    def _reply(self, row: "Row") -> Reply:
        text = self._tokenizer.decode(row.produced, skip_special_tokens=True)
        return Reply(row.item.id, str(text).strip(), len(row.produced), truncated=not row.ended)


def _prefill_groups(rows: "Sequence[Row]", shared: int) -> "Iterator[list[Row]]":
    """Cut rows, sorted by length within a suite, into groups of at most PREFILL_TOKENS padded tokens."""
    group: list[Row] = []
    width = 0
    for row in rows:
        width = max(width, len(row.prompt) - shared)
        if group and width * (len(group) + 1) > PREFILL_TOKENS:
            yield group
            group, width = [], len(row.prompt) - shared
        group.append(row)
    if group:
        yield group


def _shared_prefix(rows: "Sequence[Row]", model: "PreTrainedModel") -> list[int]:
    """Return the tokens all prompts begin with, at least one token of each left over; [] where it does not pay."""
    # Padding between prefix and rest would count as distance in a sliding window.
    slides = "sliding_attention" in (getattr(model.config, "layer_types", None) or ())
    if len(rows) < 2 or slides:
        return []
    columns = zip(*(row.prompt for row in rows), strict=False)
    shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    shared = shared[: min(len(row.prompt) for row in rows) - 1]
    return shared if len(shared) >= MIN_PREFIX else []


def _load_model(checkpoint: Path, dtype: ComputeDtype) -> "PreTrainedModel":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from iar.services.engine_cache import attention_for
    from iar.services.engine_linear import pack_linears
    from iar.services.memory import keep_freed_memory

    keep_freed_memory()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attention = attention_for(AutoConfig.from_pretrained(checkpoint).model_type, device == "cuda")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=compute_dtype(dtype), attn_implementation=attention, trust_remote_code=False
    )
    model.to(device)  # type: ignore[arg-type]
    model.eval()
    if device == "cpu":
        pack_linears(model)
    return model
