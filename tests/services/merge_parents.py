"""Checkpoint folders to merge: a copy of the tiny model with other weights, files or tensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
EMBEDDING = "model.embed_tokens.weight"


def noisy(tensors: Tensors) -> Tensors:
    generator = torch.Generator().manual_seed(5)
    return {
        name: (value.float() + 0.02 * torch.randn(value.shape, generator=generator)).to(value.dtype)
        for name, value in tensors.items()
    }


def derive(source: Path, folder: Path, change: Callable[[Tensors], Tensors], **config: object) -> Path:
    """Copy a checkpoint folder with changed tensors and config keys."""
    shutil.copytree(source, folder)
    save_file(change(load_file(source / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def shard(folder: Path) -> None:
    """Split the weights of a folder over two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
