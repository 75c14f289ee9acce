"""Where a score comes from: the same items by the kind of question, the document, the subject."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from iar.methods.bootstrap import mean_interval


@dataclass(frozen=True)
class GroupScore:
    """The mean of a group of items in points (0-100) with its 95 % bootstrap interval."""

    group: str
    points: float
    low: float
    high: float
    count: int


def by_group(scored: Iterable[tuple[str, float]], resamples: int, seed: int) -> tuple[GroupScore, ...]:
    """Return the groups in order of name, from (group, score in [0, 1]) of each item that has a score."""
    groups: dict[str, list[float]] = defaultdict(list)
    for group, score in scored:
        groups[group].append(100 * score)
    return tuple(
        GroupScore(group, *mean_interval(groups[group], resamples, seed), len(groups[group]))
        for group in sorted(groups)
    )
