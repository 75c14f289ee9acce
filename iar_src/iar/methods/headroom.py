"""What the untrained model knows already, and what follows from it for a run."""

HIGH_PRIOR = 50.0
"""Domain points of the untrained model from which half of what is asked is known."""


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
