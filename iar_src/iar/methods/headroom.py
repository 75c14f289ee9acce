"""What the untrained model knows already, and what follows from it for a run."""

from collections.abc import Mapping
from statistics import median

HIGH_PRIOR = 50.0
"""Domain points of the untrained model from which half of what is asked is known."""

CLEARLY_FEWER = 0.9
"""Share of the bits of other models, in the median, below which a model has probably read a text before."""


def prior_in_bits(own: float, others: Mapping[str, float]) -> str:
    """Return what bits per byte of the documents, of theta_0 and of other models, say about its prior.

    Bits per byte compare across tokenizers; Qwen3-4B took 0.744 of a corpus that Llama-3.2-3B took 1.021 of, and
    answered 70.6 % of the questions untrained.
    """
    if not others:
        return f"It needs {own:.3f} bits for a byte of the documents."
    each = ", ".join(f"{name} {bits:.3f}" for name, bits in others.items())
    usual = median(others.values())
    said = f"It needs {own:.3f} bits for a byte of the documents, other models: {each}."
    if own < CLEARLY_FEWER * usual:
        fewer = 100 * (1 - own / usual)
        return (
            f"{said} That is {fewer:.0f} % fewer than theirs: it has probably read these documents, or others like "
            "them. Take documents that it does not know, or a base model that does not know these."
        )
    return f"{said} That is no sign that it has read these documents before."


def advice(low: float, high: float) -> str:
    """Return what to do about a prior whose 95 % interval, in domain points, is from `low` to `high`."""
    if low >= HIGH_PRIOR:
        return (
            "The untrained model answers most of these questions already. Ask harder ones, or take documents that it "
            "does not know: training can add little here."
        )
    if high >= HIGH_PRIOR:
        return "The untrained model may know half of this already: read every gain against it, not against zero."
    return "The untrained model knows little of this: there is room for training to show."
