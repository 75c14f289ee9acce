"""Paired differences between two models: the same items, resampled together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iar.methods.bootstrap import mean_of_means_interval
from iar.records import ItemScore


@dataclass(frozen=True)
class PairedDifference:
    """`model` minus `against` on one axis, in points, with its 95 % interval, over `items` scored in both."""

    model: str
    against: str
    axis: str
    points: float
    low: float
    high: float
    items: int


def paired(
    axis: str, suites: Sequence[str], ours: Sequence[ItemScore], theirs: Sequence[ItemScore], resamples: int, seed: int
) -> PairedDifference:
    """Return the mean over `suites` of the mean difference a suite, each suite's items resampled by itself.

    Items that either model has unscored are left out. Raises ValueError where a suite has none left.
    """
    differences = [_differences(_by_id(ours, suite), _by_id(theirs, suite)) for suite in suites]
    points, low, high = mean_of_means_interval(differences, resamples, seed)
    return PairedDifference(ours[0].model, theirs[0].model, axis, points, low, high, sum(map(len, differences)))


def _by_id(scores: Sequence[ItemScore], suite: str) -> dict[str, float]:
    return {item.item_id: item.score for item in scores if item.suite == suite and item.score is not None}


def _differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    return [100 * (score - theirs[key]) for key, score in ours.items() if key in theirs]
