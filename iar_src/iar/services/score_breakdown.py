"""Scores of one model broken down by what the items are about."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from iar.methods.breakdown import by_group
from iar.records import EvalItem, ItemScore, to_json

GROUPS = ("question_type", "document", "subject", "earlier_run")
"""Keys of an item's reference: of our own questions the first two, of MMLU subject, of retention the last too."""


def breakdown(
    items: Sequence[EvalItem], scores: Sequence[ItemScore], resamples: int, seed: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return suite -> what it is broken down by -> the scores of the groups, as JSON data; unscored items left out."""
    parts: dict[str, dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for item, score in zip(items, scores, strict=True):
        for name in GROUPS:
            if item.reference.get(name) and score.score is not None:
                parts[item.suite][name].append((item.reference[name], score.score))
    return {
        suite: {name: [to_json(one) for one in by_group(pairs, resamples, seed)] for name, pairs in named.items()}
        for suite, named in parts.items()
    }
