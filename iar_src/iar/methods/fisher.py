"""Fisher information as merge weights: a tensor follows the training where that is sure, theta_0 where theta_0 is.

Source: Matena & Raffel 2111.09832, where each element has a weight. Here a tensor has one, from the mean over its
elements, so that a candidate stays its recipe: a short table, and no second model to keep. The information is
empirical: the mean over examples of the squared gradient of an example's loss.
"""

from collections.abc import Sequence

from iar.records import TensorInformation

WEIGHT_DIGITS = 6


def tensor_weights(information: Sequence[TensorInformation], share: float) -> tuple[tuple[str, float], ...]:
    """Return the weight of theta_IA in each tensor: share * F_IA / ((1 - share) * F_0 + share * F_IA).

    Each F is taken in units of its mean over the model: what was measured on other examples has another scale. Where
    nothing is known of a tensor its weight is `share`.
    """
    mean_0, mean_1 = (_mean(information, role) for role in ("base", "tuned"))
    weights = []
    for one in information:
        first, second = (1 - share) * one.base / mean_0, share * one.tuned / mean_1
        weight = second / (first + second) if first + second else share
        weights.append((one.tensor, round(weight, WEIGHT_DIGITS)))
    return tuple(weights)


def _mean(information: Sequence[TensorInformation], role: str) -> float:
    """Return the mean over all elements of the model; 1 where everything is 0."""
    elements = sum(one.elements for one in information)
    total = sum(one.elements * float(getattr(one, role)) for one in information)
    return total / elements if total else 1.0
