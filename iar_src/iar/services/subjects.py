"""The models under evaluation: the references, the baselines, each with its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from iar.services.baselines import baseline_folders
from iar.services.checkpoints import recorded_digest
from iar.services.earlier_sets import ROLE, start_of


@dataclass(frozen=True)
class Subject:
    """A model under evaluation: its id in every table, its checkpoint folder and the digest of its weights."""

    model: str
    checkpoint: Path
    digest: str


def reference_subjects(inputs: Mapping[str, Path]) -> list[Subject]:
    """Return theta_0, vanilla and theta_IA from the inputs base, vanilla and tuned; in a run on another its start."""
    folders = {
        "theta_0": inputs["base"],
        **({ROLE: start_of(inputs)} if ROLE in inputs else {}),
        "vanilla": inputs["vanilla"] / "checkpoint",
        "theta_IA": inputs["tuned"] / "checkpoint",
    }
    return [Subject(model, folder, recorded_digest(folder)) for model, folder in folders.items()]


def baseline_subjects(inputs: Mapping[str, Path]) -> list[Subject]:
    """Return the baselines among the inputs, each by the name of its recipe."""
    found = [(baseline.recipe, folder / "checkpoint") for baseline, folder in baseline_folders(inputs)]
    return [Subject(recipe, checkpoint, recorded_digest(checkpoint)) for recipe, checkpoint in found]
