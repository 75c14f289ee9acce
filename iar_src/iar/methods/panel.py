"""The adaptive judge panel: two judges, a third only where they do not settle it, score = median."""

from collections.abc import Sequence
from statistics import median

from iar.records import Vote

UNSCORED = "unscored"
THIRD_FAILED = "third vote failed"


def needs_third(votes: Sequence[Vote]) -> bool:
    """True where the first two judges differ, or where one of them failed."""
    scores = _valid(votes)
    return len(scores) < 2 or len(set(scores)) > 1


def settle(first_two: Sequence[Vote], third: Vote | None = None) -> tuple[float | None, str]:
    """Return (score in [0, 1] or None, note) from the last attempt of each judge, in any order.

    A failed vote counts as no vote, never as zero. Fewer than two valid votes leave the reply
    unscored. Two valid but unequal votes have no median on the scale: the lower counts, flagged,
    whichever of the three judges failed.
    """
    scores = _valid([*first_two, *([third] if third else [])])
    if len(scores) < 2:
        return None, UNSCORED
    if len(scores) == 2 and scores[0] != scores[1]:
        return min(scores), THIRD_FAILED
    return float(median(scores)), ""


def _valid(votes: Sequence[Vote]) -> list[float]:
    return [vote.score for vote in votes if vote.score is not None]
