"""Restart points: the whole training state on disk, complete or absent."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class RestartPoints:
    """The newest restart point of a training under one folder; a half-written one is never seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, tensors: "dict[str, torch.Tensor]") -> None:
        """Write the state after `step` steps aside, rename it, then drop the older ones."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{step:08d}.safetensors"
        part = target.with_suffix(".part")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(target)
        for other in self.folder.iterdir():
            if other != target:
                other.unlink()

    def load(self) -> "tuple[int, dict[str, torch.Tensor]]":
        """Return (steps done, state) of the newest restart point; (0, {}) without one."""
        from safetensors.torch import load_file

        files = sorted(self.folder.glob("step-*.safetensors"))
        if not files:
            return 0, {}
        return int(files[-1].stem.removeprefix("step-")), load_file(files[-1])

    def clear(self) -> None:
        """Remove all restart points: the training is finished and its checkpoint written."""
        shutil.rmtree(self.folder, ignore_errors=True)
