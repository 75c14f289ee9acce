"""A run on another in its report: what each model retains of each earlier set, and how their changes relate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from iar.records import RETENTION, DeltaFacts, EarlierSet, ModelScores, to_json
from iar.report.diagnostics import BREAKDOWN
from iar.report.tables import points_text
from iar.services.checkpoints import read_json
from iar.services.delta_facts import read_deltas
from iar.services.earlier_sets import EarlierSets


@dataclass(frozen=True)
class Rolling:
    """The sets learned before, oldest first, the facts on all changes, and model -> run -> score as JSON data.

    All is empty where a run starts from theta_0.
    """

    sets: tuple[EarlierSet, ...] = ()
    deltas: tuple[DeltaFacts, ...] = ()
    retained: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


FROM_THETA_0 = Rolling()


def read_rolling(
    inputs: Mapping[str, Path], merged: Iterable[Path], judged: Sequence[Path], scores: Iterable[ModelScores]
) -> Rolling:
    """Read what an earlier run left; `judged` are the folders with a folder for each model of `scores`."""
    sets = tuple(EarlierSets.of(inputs))
    if not sets:
        return FROM_THETA_0
    deltas = tuple(fact for folder in merged for fact in read_deltas(folder))
    return Rolling(sets, deltas, {one.model: _by_set(judged, one.model) for one in scores if not one.duplicate_of})


def _by_set(judged: Sequence[Path], model: str) -> dict[str, Any]:
    found = [path for folder in judged if (path := folder / model / BREAKDOWN).is_file()]
    groups = read_json(found[0]).get(RETENTION, {}).get("earlier_run", []) if found else []
    return {group["group"]: group for group in groups}


def rolling_json(rolling: Rolling) -> dict[str, Any]:
    """Return everything for `results.json`."""
    return {
        "sets": [to_json(one) for one in rolling.sets],
        "deltas": [to_json(one) for one in rolling.deltas],
        "retained": {model: dict(by_set) for model, by_set in rolling.retained.items()},
    }


def names(rolling: Rolling) -> list[str]:
    """Return the sets by the ids of their runs, this run's last."""
    return [*(one.run_id for one in rolling.sets), "this run"]


def retained_rows(rolling: Rolling) -> list[tuple[str, list[str]]]:
    """Return for each model its points on each earlier set as text."""
    runs = [one.run_id for one in rolling.sets]
    return [
        (model, [points_text(by_set[run]) if run in by_set else "–" for run in runs])
        for model, by_set in rolling.retained.items()
    ]


def delta_titles(rolling: Rolling) -> list[str]:
    """Return the titles of the facts: a norm a set, a cosine a pair of sets."""
    numbers = range(1, len(names(rolling)) + 1)
    return [*(f"‖Δ{number}‖" for number in numbers), *(f"cos(Δ{one}, Δ{two})" for one, two in combinations(numbers, 2))]


def delta_rows(rolling: Rolling) -> list[tuple[str, int, list[str]]]:
    """Return for each part of the model its weights and the facts as text."""
    return [
        (
            one.group,
            one.elements,
            [*(f"{norm:.4g}" for norm in one.norms), *(f"{cosine:+.3f}" for cosine in one.cosines)],
        )
        for one in rolling.deltas
    ]
