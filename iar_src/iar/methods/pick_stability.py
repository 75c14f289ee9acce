"""How sure a pick is: the whole selection rule on resampled validation items, and how often each candidate wins."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iar.methods.selection import GENERAL_SUITES, Metrics, Rule, decide, entry
from iar.records import RETENTION, ItemScore, PickStability

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

SUITES = ("domain", *GENERAL_SUITES)
_BLOCK_ELEMENTS = 4_000_000
"""Indices drawn at once: bounds memory at 32 MB whatever the number of items."""


def pick_stability(
    candidates: Mapping[str, Sequence[ItemScore]],
    vanilla: Sequence[ItemScore],
    values: Mapping[str, float],
    rule: Rule,
    resamples: int,
    seed: int,
) -> PickStability:
    """Return the share of resamples that each candidate wins, in the order given, and that none does.

    Each suite's items are drawn with replacement, the same draw for all candidates and vanilla, so that what
    they have in common takes no part. `values` has the hyper-parameter of each. An unscored item leaves its
    model's mean, as in the scores themselves; without any scored item left a candidate passes no floor.
    Raises ValueError naming a model that was not asked the same items as vanilla.
    """
    models = {"vanilla": vanilla, **candidates}
    wins: Counter[str] = Counter()
    for compared, *metrics in _resampled(models, resamples, seed):
        entries = [
            entry(name, own, compared, values[name], order)
            for order, (name, own) in enumerate(zip(candidates, metrics, strict=True))
        ]
        wins[decide(entries, rule)[0]] += 1
    shares = {name: wins[name] / resamples for name in candidates}
    return PickStability(resamples, shares, wins[""] / resamples)


def _resampled(models: Mapping[str, Sequence[ItemScore]], resamples: int, seed: int) -> list[list[Metrics]]:
    """Return the metrics of each model, in their order, for each resample."""
    import numpy as np

    generator = np.random.default_rng(seed)
    # Last, so that the draws of the others are the same with and without it.
    beside = [RETENTION] if any(item.suite == RETENTION for item in models["vanilla"]) else []
    means_SRM = [_resampled_means(_points(models, suite), resamples, generator) for suite in (*SUITES, *beside)]
    general_RM = np.mean(means_SRM[1 : len(SUITES)], axis=0)
    named = np.stack([means_SRM[0], general_RM, *means_SRM[1:]], axis=-1).tolist()
    names = ("domain", "general", *GENERAL_SUITES, *beside)
    return [[dict(zip(names, row, strict=True)) for row in rows] for rows in named]


def _points(models: Mapping[str, Sequence[ItemScore]], suite: str) -> "NDArray[numpy.float64]":
    """Return the points of every model on the items of a suite, [items, models]; NaN is unscored."""
    import numpy as np

    by_id = {
        model: {item.item_id: item.score for item in items if item.suite == suite} for model, items in models.items()
    }
    asked = list(by_id["vanilla"])
    for model, scores in by_id.items():
        if scores.keys() != by_id["vanilla"].keys():
            raise ValueError(f"{model} was asked other items of {suite} than vanilla")
    # None becomes NaN.
    rows = [[scores[name] for scores in by_id.values()] for name in asked]
    return 100 * np.array(rows, dtype=float)


def _resampled_means(
    points_NM: "NDArray[numpy.float64]", resamples: int, generator: "numpy.random.Generator"
) -> "NDArray[numpy.float64]":
    """Return the mean over the scored items of each resample, [resamples, models]; NaN where none is scored."""
    import numpy as np

    scored_NM = ~np.isnan(points_NM)
    filled_NM = np.where(scored_NM, points_NM, 0.0)
    items, block = len(points_NM), max(1, _BLOCK_ELEMENTS // len(points_NM))
    parts = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, items, (rows, items)) + items * np.arange(rows)[:, None]
        counts_RN = np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(float)
        with np.errstate(invalid="ignore"):
            parts.append((counts_RN @ filled_NM) / (counts_RN @ scored_NM.astype(float)))
    return np.concatenate(parts)
