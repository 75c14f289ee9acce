"""Continued pre-training on the documents as they are: one stream of tokens, cut to windows, loss on every token."""

from collections.abc import Iterable, Sequence
from itertools import chain

from iar.methods.batching import TokenRow

OBJECTIVE = "raw"


def raw_stream(documents: Iterable[Sequence[int]], bos_id: int | None, eos_id: int) -> list[int]:
    """Return the documents' token ids one after the other: BOS where the model has one, text, EOS."""
    begin = [] if bos_id is None else [bos_id]
    return list(chain.from_iterable([*begin, *ids, eos_id] for ids in documents))


def stream_rows(stream: Sequence[int], window_tokens: int) -> list[TokenRow]:
    """Cut the stream into the fewest windows of at most `window_tokens` tokens, equally long up to one token.

    A window begins with the last token of the one before, as context alone: every token of the stream but the
    first is a target exactly once, and weighs the same as any other up to that one token of length. Raises
    ValueError where there is nothing to predict or a window holds no target.
    """
    targets = len(stream) - 1
    if targets < 1 or window_tokens < 2:
        raise ValueError(f"a stream of {len(stream)} tokens in windows of {window_tokens} has nothing to predict")
    count = -(-targets // (window_tokens - 1))
    bounds = [number * targets // count for number in range(count + 1)]
    return [
        TokenRow(f"stream-{number}", OBJECTIVE, tuple(stream[bounds[number] : bounds[number + 1] + 1]), 1)
        for number in range(count)
    ]
