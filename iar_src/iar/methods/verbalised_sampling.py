"""Verbalised sampling: a model states several answers with their probabilities, and one is drawn.

Zhang et al. 2025, arXiv 2510.01171: asked for one answer, an aligned model gives its most typical one again and again;
asked for a distribution, it gives one near to that of its training. The drawing is ours, so it repeats itself.
"""

import math
import random
from collections.abc import Callable, Sequence


def draw_order(probabilities: Sequence[float], generator: random.Random) -> list[int]:
    """Return all places in the order in which they are drawn without replacement, each by its share of what is left.

    Keys u^(1/w), the greatest first (Efraimidis and Spirakis 2006). A model's probabilities need not add up to 1; what
    is no positive finite number counts 0 and comes last, and where none is, all are alike.
    """
    weights = [value if math.isfinite(value) and value > 0 else 0.0 for value in probabilities]
    if not any(weights):
        weights = [1.0] * len(weights)
    draws = [generator.random() for _ in weights]
    # Of u^(1/w) the logarithm: the power itself is 0 for a small weight. For the smallest that is infinite, too.
    keys = [math.log1p(-draw) / weight if weight else -math.inf for draw, weight in zip(draws, weights, strict=True)]
    return sorted(range(len(keys)), key=lambda place: (not weights[place], -keys[place], place))


def draw_question(
    proposals: Sequence[tuple[str, float]], most: int, fault: Callable[[str], str], generator: random.Random
) -> tuple[str, list[tuple[str, str]]]:
    """Return the drawn question, "" where none holds, and each of the others with the reason why it is not.

    proposals: (question, probability); fault: "" or why a question is refused. A refused one gives way to the next.
    """
    asked = proposals[:most]
    others = [(question, "beyond question_candidates") for question, _ in proposals[most:]]
    drawn = ""
    for place in draw_order([probability for _, probability in asked], generator):
        question = asked[place][0]
        reason = fault(question) or ("not drawn" if drawn else "")
        if reason:
            others.append((question, reason))
        else:
            drawn = question
    return drawn, others
