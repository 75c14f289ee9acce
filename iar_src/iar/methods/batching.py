"""Token rows, their order in an epoch, and length-aware micro-batches."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from iar.methods.objectives import RECONSTRUCTION
from iar.records import Example, Reject

# Of the sequence: shorter windows would be many rows of a few tokens, each with the weight of a whole one.
LEAST_WINDOW = 0.25


@dataclass(frozen=True)
class TokenRow:
    """One example as token ids; the loss falls on `token_ids[prompt_length:]` only.

    `window` of `windows`: which part of the example's target it is, where that is longer than the sequence.
    """

    id: str
    objective: str
    token_ids: tuple[int, ...]
    prompt_length: int
    window: int = 1
    windows: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.prompt_length < len(self.token_ids):
            raise ValueError(
                f"row {self.id}: prompt of {self.prompt_length} in {len(self.token_ids)} tokens leaves no target to "
                "train; a row needs a prompt and at least one target token"
            )

    @property
    def target_length(self) -> int:
        """Number of trained tokens, the end-of-turn token included."""
        return len(self.token_ids) - self.prompt_length


def window_rows(
    example: Example, prompt_ids: Sequence[int], target_ids: Sequence[int], end_id: int, sequence_length: int
) -> list[TokenRow] | Reject:
    """Return the rows of one example: one, or several windows where the target is longer than the sequence.

    The fewest windows, equally long up to one token: a row of its own for a few last tokens would weigh as much as
    the others. A later window keeps the prompt and goes on where the last one ended; only the last ends the turn.
    Refused where the prompt leaves no room for at least one token beside the end of turn, where windows would be
    shorter than LEAST_WINDOW of the sequence, and where a reconstruction, whose text was divided to fit, does not.
    """
    room = sequence_length - len(prompt_ids)
    if room < 2:
        return Reject("tokenise", example.id, "prompt fills the sequence", example.prompt)
    if not target_ids:
        return Reject("tokenise", example.id, "target has no tokens", example.prompt)
    whole = [*target_ids, end_id]
    count = -(-len(whole) // room)
    if count > 1 and (example.objective in RECONSTRUCTION or room < LEAST_WINDOW * sequence_length):
        return Reject("tokenise", example.id, "prompt leaves little room for a long target", example.prompt)
    bounds = [number * len(whole) // count for number in range(count + 1)]
    return [
        TokenRow(example.id, example.objective, (*prompt_ids, *whole[start:end]), len(prompt_ids), number, count)
        for number, (start, end) in enumerate(pairwise(bounds), 1)
    ]


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return the order in which the rows are visited in one epoch."""
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def step_batches(
    rows: Sequence[TokenRow], batch_size: int, seed: int, epochs: int
) -> Iterator[tuple[int, list[TokenRow]]]:
    """Yield (epoch, rows) for each optimizer step; the last step of an epoch may be short."""
    for epoch in range(epochs):
        order = epoch_order(len(rows), seed, epoch)
        for start in range(0, len(order), batch_size):
            yield epoch, [rows[index] for index in order[start : start + batch_size]]


def rank_parts(rows: Sequence[TokenRow], ranks: int) -> list[list[TokenRow]]:
    """Divide a step's rows among ranks, about equal in tokens; a rank may get none where rows are few."""
    parts: list[list[TokenRow]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in sorted(rows, key=lambda row: len(row.token_ids), reverse=True):
        lightest = tokens.index(min(tokens))
        parts[lightest].append(row)
        tokens[lightest] += len(row.token_ids)
    return parts


def micro_batches(rows: Sequence[TokenRow], max_tokens: int, padded: bool = False) -> Iterator[list[TokenRow]]:
    """Split a step's rows, like lengths together, into forward passes of at most `max_tokens` (one row at least).

    `padded` counts each row as long as the longest of its pass.
    """
    batch: list[TokenRow] = []
    tokens = 0
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        length = len(row.token_ids)
        after = (len(batch) + 1) * length if padded else tokens + length
        if batch and after > max_tokens:
            yield batch
            batch, after = [], length
        batch.append(row)
        tokens = after
    if batch:
        yield batch
