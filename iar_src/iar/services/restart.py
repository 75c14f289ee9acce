"""Restart points: the whole training state on disk, complete or absent.

restart/step-00000120/state-0-of-2.safetensors   this rank's share of the tensors, each of them whole
                      state-1-of-2.safetensors
                      point.json                 what it belongs to and how far it is
                      complete.json              files and sizes; written last

The folder is written as step-00000120.part and then renamed. Tensors are whole, so that any number of ranks can
take them up.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.records import write_json
from iar.services.distributed import World
from iar.services.workspace import sync

if TYPE_CHECKING:
    import torch

    from iar.services.restart_store import PointStore

MARKER = "complete.json"
POINT = "point.json"


@dataclass(frozen=True)
class RestartPoint:
    """A whole restart point: optimizer steps done, and its open files by the names of their tensors."""

    step: int
    folder: Path
    file_by_name: dict[str, Any]

    def tensor(self, name: str) -> "torch.Tensor":
        """Return one tensor. Raises UserError where the point lacks it."""
        if name not in self.file_by_name:
            raise UserError(
                f"{self.folder}: restart point lacks {name}, so it belongs to another model; delete the folder to "
                "train from the start"
            )
        tensor: torch.Tensor = self.file_by_name[name].get_tensor(name)
        return tensor


class RestartPoints:
    """The restart points of one training under one folder, the newest `keep` of them; a half-written one is never seen.

    `identity` says which training they belong to: rows, seed, batch size and so on. With a `store`, which only the
    rank has that tends the folder, they are uploaded while the training goes on. With `own_disks` each node has a
    folder of its own with its ranks' shares: only the store has whole points of several nodes.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        identity: Mapping[str, Any],
        world: World,
        store: "PointStore | None" = None,
        own_disks: bool = False,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.identity = dict(identity)
        self.world = world
        self.store = store
        self.tends = world.tends(own_disks)
        self.apart = own_disks and world.nodes > 1

    def save(self, step: int, tensors: "Callable[[], Mapping[str, torch.Tensor]]", last: bool = False) -> None:
        """Write the state after `step` steps; every rank calls this and writes its own share of the tensors.

        `last`: the training ends after it, and waits until the store has it.
        """
        from safetensors.torch import save_file

        target = self.folder / f"step-{step:08d}"
        part = target.with_suffix(".part")
        if self.tends:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        # Of nodes apart each sends its own share, so that all must send the same points.
        sent = last or not self.apart or not self.world.any([self.store is not None and self.store.busy])[0]
        self.world.barrier()
        share = part / f"state-{self.world.rank}-of-{self.world.ranks}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors().items()}, share)
        sync(share)
        self.world.barrier()
        if self.tends:
            self._complete(step, part, target)
        if self.store and sent:
            self.store.take(target)
        self.world.barrier()

    def _complete(self, step: int, part: Path, target: Path) -> None:
        write_json(part / POINT, {"step": step, "ranks": self.world.ranks, "identity": self.identity})
        write_json(part / MARKER, {path.name: path.stat().st_size for path in sorted(part.iterdir())})
        sync(part)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        sync(self.folder)
        kept = set(self._whole()[: self.keep])
        for other in self.folder.iterdir():
            if other not in kept:
                shutil.rmtree(other) if other.is_dir() else other.unlink()

    def newest(self) -> RestartPoint | None:
        """Return the newest whole restart point, here or in the store.

        Raises UserError where it belongs to another training.
        """
        from safetensors import safe_open

        if self.apart:
            self._bring_to_all()
        elif self.store:
            self.store.restore(next(iter(self._whole()), None))
        self.world.barrier()
        folders = self._whole()
        if not folders:
            return None
        folder = folders[0]
        point = json.loads((folder / POINT).read_text(encoding="utf-8"))
        for key, value in self.identity.items():
            if point["identity"].get(key) != value:
                raise UserError(
                    f"{folder}: restart point of another training: {key} was {point['identity'].get(key)}, is {value}; "
                    "delete the folder to train from the start"
                )
        file_by_name: dict[str, Any] = {}
        for path in sorted(folder.glob("state-*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            file_by_name |= dict.fromkeys(file.keys(), file)
        return RestartPoint(point["step"], folder, file_by_name)

    def _bring_to_all(self) -> None:
        """Bring the newest whole point of the store to every node, the same one to all."""
        if self.tends:
            shutil.rmtree(self.folder, ignore_errors=True)
        for step in self.world.gather(self.store.steps() if self.store and self.world.first else []):
            lacking = self.store is not None and not self.store.bring(step)
            if not self.world.any([lacking])[0]:
                return
            if self.tends:
                shutil.rmtree(self.folder / step, ignore_errors=True)

    def wait(self) -> None:
        """Return when the newest point is in the store, if there is one; every rank calls this."""
        if self.store:
            self.store.wait()
        self.world.barrier()

    def close(self) -> None:
        """Stop uploading: the training ends, in whatever way."""
        if self.store:
            self.store.close()

    def clear(self) -> None:
        """Remove all restart points: the training is finished and its checkpoint written."""
        if self.store:
            self.store.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _whole(self) -> list[Path]:
        """Return the folders of whole restart points, the newest first."""
        return [folder for folder in sorted(self.folder.glob("step-*"), reverse=True) if _is_whole(folder)]


def _is_whole(folder: Path) -> bool:
    if folder.suffix or not (folder / MARKER).is_file():
        return False
    sizes = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())
