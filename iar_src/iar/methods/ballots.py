"""Votes as arrays, a row a reply and a column a judge of the panel: what statistics over many votes are made from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iar.records import Vote

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

ReplyKey = tuple[str, str, str]
"""Model, suite and item of a reply."""


@dataclass(frozen=True)
class ReplyFacts:
    """What may sway a judge beside the answer: the reply's tokens, and the share of it that stands before the answer.

    `place` is None where the answer does not stand in the reply.
    """

    tokens: int
    place: float | None


@dataclass(frozen=True)
class Ballots:
    """Votes on N replies by J judges; `items` [N] numbers the item, which replies of several models share.

    `scores` [N, J] is 0, 0.5 or 1, NaN where the vote failed or was not called for; `called` [N, J] tells these apart.
    `tokens` [N] and `places` [N] are NaN where nothing is known.
    """

    items: "NDArray[numpy.int64]"
    scores: "NDArray[numpy.float64]"
    called: "NDArray[numpy.bool_]"
    tokens: "NDArray[numpy.float64]"
    places: "NDArray[numpy.float64]"


def reply_key(vote: Vote) -> ReplyKey:
    """Return the reply that a vote is on."""
    return vote.model, vote.suite, vote.item_id


def collect(
    votes: Iterable[Vote], judges: Sequence[str], facts: Mapping[ReplyKey, ReplyFacts] | None = None
) -> Ballots:
    """Return the ballots of a panel; the last attempt of a judge on a reply is its vote, other judges' are left out."""
    import numpy as np

    columns = {judge: place for place, judge in enumerate(judges)}
    replies: dict[ReplyKey, int] = {}
    cast = [
        (
            replies.setdefault(reply_key(one), len(replies)),
            columns[one.judge],
            one.attempt,
            one.score,
        )
        for one in votes
        if one.judge in columns
    ]
    reply, judge, attempt = (np.array([row[part] for row in cast], dtype=np.int64) for part in range(3))
    score = np.array([np.nan if row[3] is None else row[3] for row in cast], dtype=np.float64)
    return arrange(list(replies), reply, judge, attempt, score, len(judges), facts or {})


def arrange(
    replies: Sequence[ReplyKey],
    reply: "NDArray[numpy.int64]",
    judge: "NDArray[numpy.int64]",
    attempt: "NDArray[numpy.int64]",
    score: "NDArray[numpy.float64]",
    num_judges: int,
    facts: Mapping[ReplyKey, ReplyFacts],
) -> Ballots:
    """Return the ballots of V votes, each [V]: the number of its reply and of its judge, its attempt and its score."""
    import numpy as np

    scores = np.full((len(replies), num_judges), np.nan)
    called = np.zeros((len(replies), num_judges), dtype=bool)
    order = np.argsort(attempt, kind="stable")  # of votes on one place the last written stays
    scores[reply[order], judge[order]] = score[order]
    called[reply, judge] = True
    numbers: dict[tuple[str, str], int] = {}
    items = np.array([numbers.setdefault(key[1:], len(numbers)) for key in replies], dtype=np.int64)
    known = [facts.get(key) for key in replies]
    tokens = np.array([np.nan if one is None else one.tokens for one in known], dtype=np.float64)
    places = np.array([np.nan if one is None or one.place is None else one.place for one in known], dtype=np.float64)
    return Ballots(items, scores, called, tokens, places)
