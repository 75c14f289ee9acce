"""The diagnostics as the page and `results.json` show them: rows of the pick beside theta_0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.methods.headroom import advice
from iar.records import ModelScores
from iar.report.tables import points_text
from iar.services.checkpoints import read_json

FILE, BREAKDOWN = "diagnostics.json", "breakdown.json"
ROWS = (
    ("closed_book", "Questions alone: from memory"),
    ("open_book", "With passages found by BM25: theta_0 is retrieval without training, the pick both together"),
    ("reworded", "The same questions asked another way"),
    ("continued_seen", "Next 8 words of a training text, exact"),
    ("continued_unseen", "Next 8 words of a text that no training saw, exact"),
    ("refused_harmless", "Harmless requests refused"),
)
GROUPS = (
    ("domain", "question_type", "Question type"),
    ("domain", "document", "Document"),
    ("mmlu", "subject", "MMLU subject"),
)


@dataclass(frozen=True)
class Diagnostics:
    """What was found beside the scores; `models` is empty where the diagnostics were not asked for.

    `breakdowns`: model -> suite -> what it is broken down by -> groups.
    """

    models: Mapping[str, Any]
    breakdowns: Mapping[str, Any]


def read_diagnostics(tested: Sequence[Path], pick: str) -> Diagnostics:
    """Read what the locked test left, of the pick and theta_0; older runs left nothing."""
    models: dict[str, Any] = {}
    breakdowns: dict[str, Any] = {}
    for folder in tested:
        if (folder / FILE).is_file():
            models |= read_json(folder / FILE)["models"]
        for model in (pick, "theta_0"):
            if (folder / model / BREAKDOWN).is_file():
                breakdowns[model] = read_json(folder / model / BREAKDOWN)
    ordered = {model: models[model] for model in (pick, "theta_0") if model in models}
    return Diagnostics(ordered, breakdowns)


def headroom(test: Sequence[ModelScores]) -> str:
    """Return what the untrained model scores on the test and what follows from it; "" where there is no test."""
    prior = next((one.suite("domain") for one in test if one.model == "theta_0"), None)
    return f"theta_0 has {points_text(vars(prior))} domain points. {advice(prior.low, prior.high)}" if prior else ""


def rows(found: Diagnostics) -> list[tuple[str, list[str]]]:
    """Return a row a probe, with a cell a model; the last is the length of replies to harmless requests."""
    models = list(found.models.values())
    lines = [
        (title, [_cell(model["scores"].get(name)) for model in models])
        for name, title in ROWS
        if any(name in model["scores"] for model in models)
    ]
    words = [f"{model['harmless_words']:.1f}" for model in models]
    return [*lines, ("Words in a reply to a harmless request", words)] if models else []


def group_rows(found: Diagnostics, suite: str, name: str) -> list[tuple[str, int, list[str]]]:
    """Return group, items and a cell a model, in the order of the groups; [] where there are fewer than two."""
    parts = [model.get(suite, {}).get(name, []) for model in found.breakdowns.values()]
    by_group = [{one["group"]: one for one in part} for part in parts]
    groups = sorted({group for part in by_group for group in part})
    if len(groups) < 2:
        return []
    return [
        (
            group,
            max(part[group]["count"] for part in by_group if group in part),
            [_cell(p.get(group)) for p in by_group],
        )
        for group in groups
    ]


def _cell(score: Mapping[str, Any] | None) -> str:
    return points_text(score) if score else ""
