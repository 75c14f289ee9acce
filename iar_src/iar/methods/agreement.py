"""How well the judges of a panel agree, from their archived votes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iar.records import Vote


@dataclass(frozen=True)
class Agreement:
    """Shares in [0, 1] over judged replies; kappa in [-1, 1]. NaN-free: None where nothing can be said."""

    replies: int
    exact: float | None
    kappa: float | None
    binary_kappa: float | None
    third_rate: float | None
    failed_rate: float | None


def cohen_kappa(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Cohen's kappa of two raters over the same items; None where chance agreement is already 1."""
    if len(first) != len(second):
        raise ValueError(f"two raters need the same items, got {len(first)} and {len(second)}")
    total = len(first)
    if not total:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / total
    counts_a, counts_b = Counter(first), Counter(second)
    chance = sum(counts_a[label] * counts_b[label] for label in counts_a) / total**2
    return None if chance == 1.0 else (observed - chance) / (1 - chance)


def agreement(votes: Iterable[Vote], judges: Sequence[str]) -> Agreement:
    """Compare the panel's first two `judges` where both voted validly; count calls of the third and failures.

    The last attempt of a judge on a reply is its vote; `failed_rate` is the share of these that
    failed. `binary_kappa` asks only whether a reply is fully correct (score = 1).
    """
    replies = _last_votes(votes)
    final = [vote for by_judge in replies.values() for vote in by_judge.values()]
    pairs = [
        (a.score, b.score)
        for by_judge in replies.values()
        if (a := by_judge.get(judges[0])) and (b := by_judge.get(judges[1]))
        if a.score is not None and b.score is not None
    ]
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    thirds = sum(judges[2] in by_judge for by_judge in replies.values()) if len(judges) > 2 else 0
    return Agreement(
        replies=len(replies),
        exact=_share(sum(a == b for a, b in pairs), len(pairs)),
        kappa=cohen_kappa(first, second),
        binary_kappa=cohen_kappa([float(a == 1) for a in first], [float(b == 1) for b in second]),
        third_rate=_share(thirds, len(replies)),
        failed_rate=_share(sum(vote.score is None for vote in final), len(final)),
    )


def _last_votes(votes: Iterable[Vote]) -> dict[tuple[str, str, str], dict[str, Vote]]:
    replies: dict[tuple[str, str, str], dict[str, Vote]] = defaultdict(dict)
    for vote in votes:
        by_judge = replies[vote.model, vote.suite, vote.item_id]
        known = by_judge.get(vote.judge)
        if known is None or vote.attempt >= known.attempt:
            by_judge[vote.judge] = vote
    return replies


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
