"""Whether a training gets better by its own measure while a judge outside it finds its replies worse.

The pattern is over-optimisation of a proxy (Gao et al. 2022, arXiv 2210.10760). The last epoch is compared with each
earlier one, as its weights are those that are used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iar.methods.bootstrap import RESAMPLES, TAIL_PERCENT, mean_interval
from iar.records import Divergence


@dataclass(frozen=True)
class EpochPoints:
    """One epoch: its training loss, and points (0-100) by prompt, of those with a score."""

    epoch: int
    loss: float
    oracle: Mapping[str, float]
    accuracy: Mapping[str, float]


def divergences(epochs: Sequence[EpochPoints], resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Divergence]:
    """Yield the earlier epochs since which the oracle's score fell and the training improved; epochs are in order.

    Fell: the paired interval of the change lies below 0. Improved: the loss, a mean over every training row and so
    without sampling error, is lower, or the interval of the change in accuracy lies above 0. The comparisons share 5 %:
    each has an interval of 1 - 0.05 / comparisons (Bonferroni), so that a run warns without reason in at most 1 of 20.
    """
    *earlier, last = epochs
    for one in earlier:
        shared = [key for key in one.oracle if key in last.oracle]
        if not shared:
            continue
        tail = TAIL_PERCENT / len(earlier)
        oracle, accuracy = (
            mean_interval([after[key] - before[key] for key in shared], resamples, seed, tail)
            for before, after in ((one.oracle, last.oracle), (one.accuracy, last.accuracy))
        )
        loss = last.loss - one.loss
        if oracle[2] < 0 and (loss < 0 or accuracy[1] > 0):
            yield Divergence(one.epoch, len(shared), 1 - 2 * tail / 100, *oracle, *accuracy, loss)
