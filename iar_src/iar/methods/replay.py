"""Replay (Ibrahim et al. 2403.08763): general instruction data in place of a share of the domain rows.

Substitutive, by target tokens: an epoch trains about as many target tokens as the domain rows have, a share of
them general. Which domain rows give way and which general rows come in is drawn for each epoch anew, every
draw from (seed, epoch, index), so that it depends on nothing else.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import count

from iar.methods.batching import TokenRow, epoch_order


def mixed_epoch(
    domain: Sequence[TokenRow], general: Sequence[TokenRow], share: float, seed: int, epoch: int
) -> list[TokenRow]:
    """Return the rows of one epoch: the domain rows that stay, in their order, then the general ones.

    What goes and what comes both end as near to share x (the domain's target tokens) as whole rows allow. General
    rows repeat only when all have been used. Raises ValueError where a share is asked of no general rows.
    """
    goal = share * sum(row.target_length for row in domain)
    if goal and not general:
        raise ValueError("replay needs at least one general row")
    leaving = set(_take(domain, goal, f"{seed}:{epoch}:domain"))
    coming = _take(general, goal, f"{seed}:{epoch}:general")
    return [row for place, row in enumerate(domain) if place not in leaving] + [general[place] for place in coming]


def visited_in_order(epochs: Sequence[Sequence[TokenRow]], seed: int) -> list[TokenRow]:
    """Return the rows of all epochs, placed for a training of a single epoch, which then visits one after the other.

    Within each epoch the rows come in the order in which a training of several epochs visits them.
    """
    visits = [rows[index] for epoch, rows in enumerate(epochs) for index in epoch_order(len(rows), seed, epoch)]
    placed = list(visits)
    for index, row in zip(epoch_order(len(visits), seed, 0), visits, strict=True):
        placed[index] = row
    return placed


def general_share(rows: Sequence[TokenRow], objective: str) -> float:
    """Return the share of target tokens that rows of `objective` hold."""
    total = sum(row.target_length for row in rows)
    return sum(row.target_length for row in rows if row.objective == objective) / total


def _take(rows: Sequence[TokenRow], goal: float, key: str) -> list[int]:
    """Return indices as drawn, up to where one more row would not bring their target tokens nearer to `goal`."""
    taken: list[int] = []
    tokens = 0
    for index in _drawn(len(rows), key):
        length = rows[index].target_length
        if abs(tokens + length - goal) >= abs(tokens - goal):
            break
        taken.append(index)
        tokens += length
    return taken


def _drawn(size: int, key: str) -> Iterator[int]:
    """Yield all indices in a drawn order, then all again in another, without end."""
    for lap in count() if size else ():
        yield from sorted(range(size), key=lambda index: random.Random(f"{key}:{lap}:{index}").random())
