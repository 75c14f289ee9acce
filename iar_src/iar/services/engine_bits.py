"""How many bits a loaded model needs for texts as they are, without a chat around them."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from iar.methods.raw_stream import stream_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WINDOW_TOKENS = 1024
"""Longest part of a text; with it the logits of a forward pass, padded tokens x vocabulary, stay below 1 GB."""

Window = tuple[int, tuple[int, ...]]
"""The number of a text, and tokens of it behind one token of context."""


def text_bits(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[float]:
    """Return the sum of -log2 p of each text's tokens; 0 for a text without any.

    The first token is predicted from the token that begins a document (BOS, else EOS), which costs no bits.
    """
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    # What looks like a special token in a document is text.
    encoded = [tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in texts]
    length = min(WINDOW_TOKENS, getattr(model.config, "max_position_embeddings", None) or WINDOW_TOKENS)
    windows = [
        (number, row.token_ids)
        for number, ids in enumerate(encoded)
        if ids
        for row in stream_rows([first, *ids], length)
    ]
    bits = [0.0] * len(texts)
    for batch in _batches(sorted(windows, key=lambda window: len(window[1]))):
        for (number, _), nats in zip(batch, _nats(model, [ids for _, ids in batch]), strict=True):
            bits[number] += nats / math.log(2)
    return bits


def _batches(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Cut windows, sorted by length, into batches of at most WINDOW_TOKENS padded tokens."""
    batch: list[Window] = []
    for window in windows:
        if batch and len(window[1]) * (len(batch) + 1) > WINDOW_TOKENS:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


@torch.inference_mode()
def _nats(model: "PreTrainedModel", windows: Sequence[Sequence[int]]) -> list[float]:
    """Return the negative log likelihood of each window's tokens but the first."""
    rows = [torch.tensor(ids, device=model.device) for ids in windows]
    ids_BT = pad_sequence(rows, batch_first=True)
    mask_BT = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    # A row at a time: in fp32 the logits of a batch would take twice the memory of the pass.
    return [
        float(cross_entropy(logits_TV[: len(row) - 1].float(), row[1:], reduction="sum"))
        for row, logits_TV in zip(rows, logits_BTV, strict=True)
    ]
