"""What the controls and baselines of a run file need, looked at before hours of training."""

import importlib.util
from dataclasses import replace

from iar.config import ModelSection, RunFile
from iar.errors import UserError
from iar.services.doctor_model import check_model
from iar.services.findings import Check
from iar.services.instructions import HUB, KEY
from iar.services.source_rows import is_file


def check_recipes(run_file: RunFile) -> Check:
    """Find the package, the data and the model that the recipes asked for need."""
    settings = run_file.baselines
    if "lora" in settings.recipes and importlib.util.find_spec("peft") is None:
        detail = "baselines.recipes: lora needs the package peft"
        return Check("recipes", "fail", detail, "pip install 'iar[train]', or leave it out")
    if "cpt-sft" in settings.recipes and settings.cpt_model:
        found = _base_model(settings.cpt_model, settings.cpt_revision)
        if found.status == "fail":
            return found
    if "replay" in settings.recipes and not is_file(settings.replay_data, KEY, HUB.example):
        detail = f"{settings.replay_data} will be fetched from the hub"
        return Check("recipes", "warn", detail, "download it before, to be sure")
    return Check("recipes", "pass", f"{', '.join(settings.recipes)}: nothing is missing")


def _base_model(source: str, revision: str) -> Check:
    """Look for the base model as for theta_0; what is said names the key of this one."""
    model = ModelSection(source=source, revision=revision)
    try:
        found = check_model(model)
    except UserError as error:
        found = Check("model", "fail", str(error))
    return replace(found, name="recipes", detail=found.detail.replace("model.source", "baselines.cpt_model"))
