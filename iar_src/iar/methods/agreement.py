"""How well judges agree, and what sways one more than the other: every number with its bootstrap interval.

All of them are functions of sums over replies. So a resample of the items is a row of weights, and 2,000 of them are a
matrix product: memory and time grow with the items, not with the votes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iar.methods.ballots import Ballots
from iar.methods.bootstrap import RESAMPLES, TAIL_PERCENT

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

GRADES = (0.0, 0.5, 1.0)
_BLOCK_ELEMENTS = 4_000_000
"""Draws held at once: bounds memory at 32 MB whatever the number of items."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % percentile interval; all None where nothing can be said."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Agreement:
    """A panel over judged replies. Rates are shares in [0, 1], kappas and alpha in [-1, 1], biases in points.

    `exact`, the kappas and `alpha` compare the first two judges, which vote on every reply; the third, called where
    these differ, would count every disagreement double. `binary_kappa` asks only whether a reply is fully right,
    `weighted_kappa` and `alpha` weigh a disagreement by its square (Cohen 1968; Krippendorff's interval metric).
    `length_bias` is what the first judge gives long replies (over the median) more than the second does, less the same
    of short ones; `place_bias` likewise of replies with the answer in their second half and in their first.
    """

    replies: int
    exact: Estimate
    kappa: Estimate
    binary_kappa: Estimate
    weighted_kappa: Estimate
    alpha: Estimate
    third_rate: Estimate
    failed_rate: Estimate
    unscored_rate: Estimate
    length_bias: Estimate
    place_bias: Estimate


@dataclass(frozen=True)
class HumanAgreement:
    """A judge beside people on `answers` replies; `difference` is judge minus people, in points."""

    judge: str
    answers: int
    exact: Estimate
    kappa: Estimate
    binary_kappa: Estimate
    weighted_kappa: Estimate
    difference: Estimate


def agreement(ballots: Ballots, resamples: int = RESAMPLES, seed: int = 0) -> Agreement:
    """Return how the judges of a panel agree; the items are resampled, with all that was answered to them."""
    import numpy as np

    scores, called = ballots.scores, ballots.called
    first, second = scores[:, 0], scores[:, 1]
    valid = ~np.isnan(scores)
    third = called[:, 2:].any(axis=1)
    difference = 100 * (first - second)
    long = _halves(ballots.tokens, float(np.nanmedian(ballots.tokens)) if _known(ballots.tokens) else 0.0)
    late = _halves(ballots.places, 0.5)
    counts = np.column_stack(
        [np.ones(len(first)), third, called.sum(axis=1), (called & ~valid).sum(axis=1), valid.sum(axis=1) < 2]
    )
    features = np.hstack([_pairs(first, second), counts, _contrast(difference, long), _contrast(difference, late)])
    sums = _resampled_sums(_by_item(ballots.items, features), resamples, seed)
    tables, (replies, thirds, votes, failed, unscored) = sums[:, :9], sums[:, 9:14].T
    with np.errstate(divide="ignore", invalid="ignore"):
        return Agreement(
            replies=len(first),
            exact=_estimate(_exact(tables)),
            kappa=_estimate(_kappa(tables, _differ())),
            binary_kappa=_estimate(_kappa(tables, _binary())),
            weighted_kappa=_estimate(_kappa(tables, _squares())),
            alpha=_estimate(_alpha(tables)),
            third_rate=_estimate(thirds / replies),
            failed_rate=_estimate(failed / votes),
            unscored_rate=_estimate(unscored / replies),
            length_bias=_estimate(_contrasted(sums[:, 14:18])),
            place_bias=_estimate(_contrasted(sums[:, 18:22])),
        )


def human_agreement(
    judge: str,
    scores: "Sequence[float | None]",
    labels: Sequence[float],
    weights: Sequence[float],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> HumanAgreement:
    """Return how a judge's scores agree with people's labels of the same replies; failed votes (None) are left out.

    `weights` say how many replies each labelled one stands for.
    """
    import numpy as np

    theirs = np.array([np.nan if score is None else score for score in scores], dtype=float)
    ours, weight = np.asarray(labels, dtype=float), np.asarray(weights, dtype=float)[:, None]
    scored = ~np.isnan(theirs)
    points = np.where(scored, 100 * (theirs - ours), 0.0)
    features = weight * np.hstack([_pairs(theirs, ours), np.column_stack([points, scored])])
    sums = _resampled_sums(features[scored], resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        tables = sums[:, :9]
        return HumanAgreement(
            judge=judge,
            answers=int(scored.sum()),
            exact=_estimate(_exact(tables)),
            kappa=_estimate(_kappa(tables, _differ())),
            binary_kappa=_estimate(_kappa(tables, _binary())),
            weighted_kappa=_estimate(_kappa(tables, _squares())),
            difference=_estimate(sums[:, 9] / sums[:, 10]),
        )


def _pairs(first: "NDArray[numpy.float64]", second: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return [N, 9]: 1 at the pair of grades that two judges gave, nothing where one of them gave none."""
    import numpy as np

    return np.column_stack([(first == a) & (second == b) for a in GRADES for b in GRADES]).astype(float)


def _exact(tables: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return the share of pairs of the same grade, of tables [R, 9]."""
    import numpy as np

    same: NDArray[numpy.float64] = (np.eye(3).ravel() * tables).sum(axis=1)
    shares: NDArray[numpy.float64] = same / tables.sum(axis=1)
    return shares


def _kappa(tables: "NDArray[numpy.float64]", cost: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return 1 - observed / expected cost of a disagreement (Cohen 1968); NaN where chance alone agrees fully."""
    table = tables.reshape(-1, 3, 3)
    expected = (table.sum(axis=2)[:, :, None] * table.sum(axis=1)[:, None, :] * cost).sum(axis=(1, 2))
    observed = (table * cost).sum(axis=(1, 2)) * table.sum(axis=(1, 2))
    kappas: NDArray[numpy.float64] = 1 - observed / expected
    return kappas


def _alpha(tables: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return Krippendorff's alpha with the interval metric, of two judges without missing votes."""
    table = tables.reshape(-1, 3, 3)
    pooled = table.sum(axis=2) + table.sum(axis=1)
    total = pooled.sum(axis=1)
    expected = (pooled[:, :, None] * pooled[:, None, :] * _squares()).sum(axis=(1, 2)) / (total - 1)
    alphas: NDArray[numpy.float64] = 1 - 2 * (table * _squares()).sum(axis=(1, 2)) / expected
    return alphas


def _differ() -> "NDArray[numpy.float64]":
    """Return the cost [3, 3] of a disagreement: 1 between any two grades."""
    import numpy as np

    return 1.0 - np.eye(len(GRADES))


def _binary() -> "NDArray[numpy.float64]":
    """Return the cost of a disagreement on whether a reply is fully right."""
    import numpy as np

    full = np.array(GRADES) == 1
    cost: NDArray[numpy.float64] = (full[:, None] != full).astype(float)
    return cost


def _squares() -> "NDArray[numpy.float64]":
    """Return the squared distance of the grades."""
    import numpy as np

    squares: NDArray[numpy.float64] = np.subtract.outer(GRADES, GRADES) ** 2
    return squares


def _known(values: "NDArray[numpy.float64]") -> bool:
    import numpy as np

    return not bool(np.isnan(values).all())


def _halves(values: "NDArray[numpy.float64]", middle: float) -> "NDArray[numpy.float64]":
    """Return [N]: 1 above the middle, 0 up to it, NaN where the value is unknown."""
    import numpy as np

    return np.where(np.isnan(values), np.nan, values > middle)


def _contrast(difference: "NDArray[numpy.float64]", half: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return [N, 4]: difference and count of the upper half, then of the lower; 0 where either is unknown."""
    import numpy as np

    columns = []
    for side in (1.0, 0.0):
        inside = (half == side) & ~np.isnan(difference)
        columns += [np.where(inside, difference, 0.0), inside]
    return np.column_stack(columns).astype(float)


def _contrasted(sums: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    return sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]


def _by_item(items: "NDArray[numpy.int64]", features: "NDArray[numpy.float64]") -> "NDArray[numpy.float64]":
    """Return the sums of the features over the replies to each item, [items, F]."""
    import numpy as np

    count = int(items.max()) + 1 if items.size else 0
    columns = [np.bincount(items, weights=column, minlength=count) for column in features.T]
    return np.column_stack(columns)


def _resampled_sums(features: "NDArray[numpy.float64]", resamples: int, seed: int) -> "NDArray[numpy.float64]":
    """Return [1 + resamples, F]: the sums over all rows, then over as many rows drawn with replacement."""
    import numpy as np

    count = len(features)
    if not count:
        return np.zeros((1, features.shape[1]))
    generator = np.random.default_rng(seed)
    sums = [features.sum(axis=0, keepdims=True)]
    block = max(1, _BLOCK_ELEMENTS // count)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        sums.append(weights.astype(float) @ features)
    return np.vstack(sums)


def _estimate(values: "NDArray[numpy.float64]") -> Estimate:
    """Return the first value with the percentiles of the others, those of which nothing can be said left out."""
    import numpy as np

    value, others = values[0], values[1:][np.isfinite(values[1:])]
    if not np.isfinite(value):
        return Estimate(None)
    if not others.size:
        return Estimate(float(value))
    low, high = np.percentile(others, [TAIL_PERCENT, 100 - TAIL_PERCENT])
    return Estimate(float(value), float(low), float(high))
