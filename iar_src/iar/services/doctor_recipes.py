"""What the controls and baselines of a run file need, looked at before hours of training."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

from iar.config import ModelSection, RunFile
from iar.errors import UserError
from iar.services.doctor_model import check_model
from iar.services.findings import Check
from iar.services.instructions import HUB, KEY, general_examples
from iar.services.source_rows import is_file

# Checkpoints on disk at once beside those of the method; cpt-sft keeps the one of the documents until the end, fapm,
# of a model stored in two bytes, vanilla's in four.
CHECKPOINTS = {"vanilla-sft": 0, "cpt-sft": 2, "fapm": 3}


def recipe_checkpoints(run_file: RunFile) -> int:
    """Return how many checkpoints the recipes asked for take on disk, the copy of another start included."""
    settings = run_file.baselines
    start = int("cpt-sft" in settings.recipes and bool(settings.cpt_model))
    return start + sum(CHECKPOINTS.get(name, 1) for name in settings.recipes)


def check_recipes(run_file: RunFile, recipes: Sequence[str]) -> Check:
    """Find the package, the data and the model that these recipes need; a file is read as the recipe will read it."""
    settings = run_file.baselines
    on_cluster = run_file.platform.backend == "kubeflow"  # there the image brings the package
    if "lora" in recipes and not on_cluster and importlib.util.find_spec("peft") is None:
        detail = "baselines.recipes: lora needs the package peft"
        return Check("recipes", "fail", detail, "pip install 'iar[lora]', or leave it out")
    if "cpt-sft" in recipes and settings.cpt_model:
        found = _base_model(settings.cpt_model, settings.cpt_revision)
        if found.status == "fail":
            return found
    if "replay" not in recipes:
        return Check("recipes", "pass", f"{', '.join(recipes)}: nothing is missing")
    if not is_file(settings.replay_data, KEY, HUB.example):
        if not on_cluster and importlib.util.find_spec("datasets") is None:
            detail = f"{KEY}: {settings.replay_data} is a hub id, and the package datasets is missing"
            return Check("recipes", "fail", detail, "pip install 'iar[eval]', or give a file")
        detail = f"{settings.replay_data} will be fetched from the hub"
        return Check("recipes", "warn", detail, "download it before, to be sure")
    rows = len(general_examples(settings.replay_data))
    return Check("recipes", "pass", f"{', '.join(recipes)}: nothing is missing, {rows} general rows to replay")


def _base_model(source: str, revision: str) -> Check:
    """Look for the base model as for theta_0; what is said names the key of this one."""
    model = ModelSection(source=source, revision=revision)
    try:
        found = check_model(model)
    except UserError as error:
        found = Check("model", "fail", str(error))
    return replace(found, name="recipes", detail=found.detail.replace("model.source", "baselines.cpt_model"))
