"""Checkpoint folders in the Hugging Face layout: what identifies their weights, and their tensors mapped to memory."""

import hashlib
import json
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import PermanentError, UserError

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 1 << 22
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def weight_files(folder: Path) -> list[Path]:
    """Return the `*.safetensors` files of `folder`, sorted by name. Raises UserError where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no *.safetensors file; point to a checkpoint folder saved in that format")
    return files


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of all `*.safetensors` bytes of `folder`, one file after the other in sorted order.

    For a checkpoint in one file this is the plain SHA-256 of that file.
    """
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def stored_elements(folder: Path) -> int:
    """Return how many numbers the weights hold, from their headers. Raises UserError for a file cut or damaged."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(
                f"{path}: not a whole safetensors file ({error}); copy the file again from its origin"
            ) from error
    return count


def recorded_digest(folder: Path) -> str:
    """Return the digest that `checkpoint.json` records for `folder`, or the digest of its weights without one."""
    record = folder / "checkpoint.json"
    if not record.is_file():
        return weights_digest(folder)
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f'{record}: no {{"digest": ...}} record; delete the file to hash the weights') from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of a checkpoint folder; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}; copy the file again from its origin") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds a {type(value).__name__}, not an object; copy the file again from its origin")
    return value


@dataclass(frozen=True)
class TensorInfo:
    """Name, safetensors dtype (F32, F16, BF16) and shape of a stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.elements * ELEMENT_BYTES[self.dtype]


class MappedTensors:
    """The tensors of a checkpoint folder, mapped to memory, over one file or several."""

    def __init__(self, folder: Path) -> None:
        """Map every weights file. Raises UserError for a tensor stored twice or missing against the index."""
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        self.info: dict[str, TensorInfo] = {}
        self._places: dict[str, tuple[mmap.mmap, int]] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="numpy")
            except SafetensorError as error:
                raise PermanentError(f"{path}: not a complete safetensors file: {error}") from error
            mapped, starts = _mapped(path)
            for name in file.keys():  # noqa: SIM118, the handle is no mapping
                self._add(name, file.get_slice(name), path)
                self._places[name] = mapped, starts[name]
        self._check_index()

    def flat(self, name: str) -> "torch.Tensor":
        """Return a tensor as one dimension, in its stored dtype; its bytes are read when they are touched."""
        import torch

        info, (mapped, start) = self.info[name], self._places[name]
        dtype = getattr(torch, TORCH_NAMES[info.dtype])
        if not info.elements:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(mapped, dtype=dtype, count=info.elements, offset=start)

    def release(self, name: str) -> None:
        """Give the memory of a tensor back; touched again, it is read again."""
        mapped, start = self._places[name]
        first = start - start % mmap.PAGESIZE
        if self.info[name].bytes:
            mapped.madvise(mmap.MADV_DONTNEED, first, start + self.info[name].bytes - first)

    def _add(self, name: str, stored: Any, path: Path) -> None:
        if name in self.info:
            raise UserError(f"{path}: tensor '{name}' is also in another file of the folder; remove the older files")
        dtype = stored.get_dtype()
        if dtype not in ELEMENT_BYTES:
            raise UserError(f"{path}: tensor '{name}' is {dtype}; save the model in fp32, fp16 or bf16 first")
        self.info[name] = TensorInfo(name, dtype, tuple(stored.get_shape()))

    def _check_index(self) -> None:
        path = self.folder / INDEX_NAME
        listed = read_json(path).get("weight_map") if path.is_file() else None
        if listed is None:
            return
        for name in sorted(set(listed) ^ set(self.info)):
            where = f"{listed[name]} lacks it" if name in listed else "the index does not list it"
            raise UserError(f"{path}: tensor '{name}': {where}; copy the whole checkpoint again")


def _mapped(path: Path) -> tuple[mmap.mmap, dict[str, int]]:
    """Map a whole safetensors file, copied on write; return by tensor name where its bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header.pop("__metadata__", None)
    return mapped, {name: 8 + length + one["data_offsets"][0] for name, one in header.items()}


def plan_shards(tensors: Sequence[TensorInfo], limit_bytes: float) -> dict[str, list[TensorInfo]]:
    """Return file name -> its tensors, in order: as many as fit into `limit_bytes`, one at least."""
    shards: list[list[TensorInfo]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(one.bytes for one in shards[-1]) + tensor.bytes > limit_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        return {SINGLE_NAME: shards[0]}
    return {f"model-{number:05}-of-{len(shards):05}.safetensors": shard for number, shard in enumerate(shards, start=1)}


def shard_index(shards: Mapping[str, Sequence[TensorInfo]]) -> dict[str, Any]:
    """Return the content of the index that stands beside several weights files."""
    size = sum(tensor.bytes for shard in shards.values() for tensor in shard)
    places = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    return {"metadata": {"total_size": size}, "weight_map": places}


def safetensors_header(tensors: Iterable[TensorInfo]) -> bytes:
    """Return the bytes in front of the data of a safetensors file that holds `tensors` in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
