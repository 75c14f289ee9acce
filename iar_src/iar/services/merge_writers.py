"""A candidate's folder while it is written: aside, its record last, under its final name in one step."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from iar.errors import UserError
from iar.methods.merge_facts import Sums, layer_facts, total
from iar.methods.merge_grid import Recipe
from iar.records import Candidate, write_json, write_records
from iar.services.checkpoints import INDEX_NAME, TensorInfo, safetensors_header, shard_index
from iar.services.direct_file import DirectFile

COPIED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.tiktoken",
    "*.py",
)
PART_PREFIX = ".part-"
LAYERS = "layers.jsonl"


@dataclass
class CandidateWriter:
    """The weights files of one candidate, written in order and hashed as one."""

    recipe: Recipe
    folder: Path
    shards: Mapping[str, Sequence[TensorInfo]]
    sums: dict[str, Sums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.sha256 = hashlib.sha256()
        self._waiting = list(self.shards.items())
        self._file: DirectFile | None = None
        self._left = 0

    def append(self, data: "bytes | memoryview") -> None:
        """Write and hash the next bytes of the tensors; no call crosses from one tensor into the next."""
        if self._file is None or not self._left:
            self._next_file()
        self._put(data)
        self._left -= len(data)

    def close(self) -> None:
        """Close the weights file, finished or not."""
        if self._file:
            self._file.close()

    def finish(self, base: Path, parents: Mapping[str, str]) -> Candidate:
        """Close the weights and complete the folder."""
        while self._waiting:  # a file of empty tensors alone
            self._next_file()
        self.close()
        if len(self.shards) > 1:
            write_json(self.folder / INDEX_NAME, shard_index(self.shards))
        return complete(self.folder, self.recipe, self.sha256.hexdigest(), self.sums, base, parents)

    def _next_file(self) -> None:
        self.close()
        name, tensors = self._waiting.pop(0)
        header, self._left = safetensors_header(tensors), sum(tensor.bytes for tensor in tensors)
        self._file = DirectFile(self.folder / name, len(header) + self._left)
        self._put(header)

    def _put(self, data: "bytes | memoryview") -> None:
        assert self._file is not None
        self._file.write(data)
        self.sha256.update(data)


def complete(
    folder: Path, recipe: Recipe, digest: str, sums: Mapping[str, Sums], base: Path, parents: Mapping[str, str]
) -> Candidate:
    """Copy what stands beside the weights in the base, write facts and record last, give the final name."""
    for pattern in COPIED_FILES:
        for source in base.glob(pattern):
            shutil.copyfile(source, folder / source.name)
    candidate = candidate_of(recipe, digest, sums)
    write_records(folder / LAYERS, layer_facts(recipe.id, sums))
    record = {"digest": digest, "candidate": asdict(candidate), "parents": dict(parents)}
    write_json(folder / "checkpoint.json", record)
    folder.rename(folder.with_name(recipe.id))
    return candidate


def candidate_of(recipe: Recipe, digest: str, sums: Mapping[str, Sums]) -> Candidate:
    """Return the record of a candidate; `sums` are by tensor name."""
    whole = total(sums.values())
    return Candidate(
        id=recipe.id,
        operator=recipe.operator,
        parameter=recipe.parameter,
        value=recipe.value,
        seed=recipe.seed,
        digest=digest,
        changed_share=whole.changed_share,
        distance_to_base=whole.distance_to_base,
        distance_to_tuned=whole.distance_to_tuned,
        layers=recipe.layers,
    )


def fresh_part(out: Path, recipe: Recipe) -> Path:
    """Remove an earlier candidate of this id; return the folder in which a new one is made."""
    if (out / recipe.id).exists():
        shutil.rmtree(out / recipe.id)
    return out / f"{PART_PREFIX}{recipe.id}"


def remove_parts(out: Path) -> None:
    """Remove candidates that were never finished."""
    for folder in out.glob(f"{PART_PREFIX}*"):
        shutil.rmtree(folder)


def check_disk(out: Path, needed_bytes: int) -> None:
    """Raise UserError where the candidates do not fit on the disk."""
    free_bytes = shutil.disk_usage(out).free
    if free_bytes < needed_bytes:
        raise UserError(
            f"{out}: the candidates need {needed_bytes / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB are free; "
            "free some, or set run.state to a larger disk"
        )
