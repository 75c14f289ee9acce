"""The diagnostics as the page and `results.json` show them: rows of the pick beside theta_0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.methods.headroom import advice, prior_in_bits
from iar.records import BitsPerByte, ModelScores
from iar.report.tables import points_text
from iar.services.checkpoints import read_json
from iar.services.headroom import read_beside

FILE, BREAKDOWN = "diagnostics.json", "breakdown.json"
ROWS = (
    ("closed_book", "Questions alone: from memory"),
    ("open_book", "With passages found by BM25: theta_0 is retrieval without training, the pick both together"),
    ("reworded", "The same questions asked another way"),
    ("continued_seen", "Next 8 words of a training text, exact"),
    ("continued_unseen", "Next 8 words of a text that no training saw, exact"),
    ("refused_harmless", "Harmless requests refused"),
)
ANSWERED = ("open_book", "reworded")
GROUPS = (
    ("domain", "question_type", "Question type"),
    ("domain", "document", "Document"),
    ("mmlu", "subject", "MMLU subject"),
)


@dataclass(frozen=True)
class Diagnostics:
    """What was found beside the scores; `models` is empty where the diagnostics were not asked for.

    `breakdowns`: model -> suite -> what it is broken down by -> groups. `beside`: bits per byte of other models.
    """

    models: Mapping[str, Any]
    breakdowns: Mapping[str, Any]
    beside: tuple[BitsPerByte, ...] = ()


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
    return Diagnostics(ordered, breakdowns, tuple(one for folder in tested for one in read_beside(folder)))


def headroom(test: Sequence[ModelScores], bits: Sequence[BitsPerByte] = (), beside: Sequence[BitsPerByte] = ()) -> str:
    """Return what the untrained model scores on the test and what follows from it; "" where there is no test.

    bits: of the run's models, beside: of others on the same texts.
    """
    prior = next((one.suite("domain") for one in test if one.model == "theta_0"), None)
    if not prior:
        return ""
    own = next((one.source for one in bits if one.model == "theta_0"), None)
    said = prior_in_bits(own, {one.model: one.source for one in beside}) if own is not None else ""
    return f"theta_0 has {points_text(vars(prior))} domain points. {advice(prior.low, prior.high)} {said}".strip()


def rows(found: Diagnostics) -> list[tuple[str, list[str]]]:
    """Return a row a probe, with a cell a model; the last is the length of replies to harmless requests."""
    models = list(found.models.values())
    lines = [
        (title, [_cell(model["scores"].get(name)) + _cut_off(model, name) for model in models])
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


def _cut_off(model: Mapping[str, Any], probe: str) -> str:
    """Return how many replies the token limit ended, where that says something: short probes are cut off by design."""
    share = model.get("truncated", {}).get(probe, 0.0) if probe in ANSWERED else 0.0
    return f", {100 * share:.1f} % cut off" if share else ""


def _cell(score: Mapping[str, Any] | None) -> str:
    return points_text(score) if score else ""
