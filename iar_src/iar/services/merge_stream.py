"""All candidates of a grid in one pass over two checkpoints: each tensor pair is read once, block by block.

Memory: the two checkpoints are mapped, not loaded; beside them stands one fp32 copy of the largest tensor (for the
TIES selection) and a few blocks. Weights are written one tensor after the other behind a header made beforehand.
"""

import hashlib
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iar.errors import PermanentError, UserError
from iar.methods.merge_grid import Recipe
from iar.records import Candidate, write_json
from iar.services.checkpoints import MappedTensors, TensorInfo, safetensors_header
from iar.services.merge_checks import check_finite, check_same_tokenizer, shared_layout

if TYPE_CHECKING:
    import torch

    from iar.methods.merging import Block

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
PENDING_WRITES = 32  # blocks of all candidates that may wait for the disk
FACT_DIGITS = 6  # beyond them the order of summation shows

ReportProgress = Callable[[float, float, str], None]


@dataclass
class Distances:
    """Sums behind a candidate's facts: changed elements, and squared distances to both parents and between them."""

    elements: int = 0
    changed: int = 0
    square_to_base: float = 0.0
    square_to_tuned: float = 0.0
    square_delta: float = 0.0

    def add(self, written: "torch.Tensor", block: "Block", square_delta: float) -> None:
        """Count one block of a candidate, as it is after rounding to the output dtype."""
        moved = written.float() - block.theta_0
        self.elements += len(moved)
        self.changed += int(np.count_nonzero(moved.numpy() != 0))
        self.square_to_base += float(moved @ moved)
        rest = moved.sub_(block.delta)
        self.square_to_tuned += float(rest @ rest)
        self.square_delta += square_delta

    @property
    def changed_share(self) -> float:
        """Share of elements that differ from theta_0."""
        return round(self.changed / max(1, self.elements), FACT_DIGITS)

    def relative(self, square: float) -> float:
        """Return a squared distance as a distance in units of the one between the parents."""
        return round(math.sqrt(square / self.square_delta), FACT_DIGITS) if self.square_delta else 0.0


@dataclass
class CandidateWriter:
    """A candidate's folder while it is written: aside, under a name that no reader looks for."""

    recipe: Recipe
    folder: Path
    header: bytes
    distances: Distances = field(default_factory=Distances)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.file = (self.folder / "model.safetensors").open("wb")
        self.sha256 = hashlib.sha256()
        self.append(self.header)

    def append(self, data: "bytes | memoryview") -> None:
        """Write and hash the next bytes of the weights file."""
        self.file.write(data)
        self.sha256.update(data)

    def close(self) -> None:
        """Close the weights file, finished or not."""
        self.file.close()

    def finish(self, base: Path, parents: dict[str, str]) -> Candidate:
        """Close the weights, copy what stands beside them in the base, write the record last, give the final name."""
        self.close()
        for pattern in COPIED_FILES:
            for source in base.glob(pattern):
                shutil.copyfile(source, self.folder / source.name)
        candidate = Candidate(
            **asdict(self.recipe),
            digest=self.sha256.hexdigest(),
            changed_share=self.distances.changed_share,
            distance_to_base=self.distances.relative(self.distances.square_to_base),
            distance_to_tuned=self.distances.relative(self.distances.square_to_tuned),
        )
        record = {"digest": candidate.digest, "candidate": asdict(candidate), "parents": parents}
        write_json(self.folder / "checkpoint.json", record)
        self.folder.rename(self.folder.with_name(self.recipe.id))
        return candidate


def merge_candidates(
    base: Path,
    tuned: Path,
    recipes: Sequence[Recipe],
    out: Path,
    parents: dict[str, str],
    on_progress: ReportProgress | None = None,
) -> list[Candidate]:
    """Write one Hugging Face folder a recipe, `out/<recipe id>`, in the base model's dtype; return what came out.

    `parents` (role -> digest) goes into each folder's `checkpoint.json`. Raises UserError where the checkpoints do
    not belong together or the disk is too small, PermanentError for a value that is NaN or infinite; then nothing
    of this call stays in `out`.
    """
    if not recipes:
        return []
    tensors_0, tensors_1 = MappedTensors(base), MappedTensors(tuned)
    check_same_tokenizer(base, tuned)
    layout = shared_layout(tensors_0, tensors_1)
    header = safetensors_header(layout)
    out.mkdir(parents=True, exist_ok=True)
    remove_parts(out)
    _check_disk(out, (len(header) + sum(info.bytes for info in layout)) * len(recipes))
    with ExitStack() as stack:
        stack.callback(remove_parts, out)
        stack.enter_context(one_torch_thread())
        parts = [_fresh_part(out, recipe) for recipe in recipes]
        writers = [
            stack.enter_context(closing(CandidateWriter(recipe, part, header)))
            for recipe, part in zip(recipes, parts, strict=True)
        ]
        _stream(tensors_0, tensors_1, layout, writers, on_progress)
        return [writer.finish(base, parents) for writer in writers]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute on the calling thread alone: blocks are too small to share.

    On a busy machine the barrier after each shared operation costs a hundred times the operation.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def remove_parts(out: Path) -> None:
    """Remove candidates that were never finished."""
    for folder in out.glob(f"{PART_PREFIX}*"):
        shutil.rmtree(folder)


def _fresh_part(out: Path, recipe: Recipe) -> Path:
    if (out / recipe.id).exists():
        shutil.rmtree(out / recipe.id)
    return out / f"{PART_PREFIX}{recipe.id}"


def _check_disk(out: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(out).free
    if free_bytes < needed_bytes:
        raise UserError(
            f"{out}: the candidates need {needed_bytes / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB are free; "
            "free some, or set run.state to a larger disk"
        )


def _stream(
    tensors_0: MappedTensors,
    tensors_1: MappedTensors,
    layout: Sequence[TensorInfo],
    writers: Sequence[CandidateWriter],
    on_progress: ReportProgress | None,
) -> None:
    """Read, merge, and hand over to one writing thread, which keeps the blocks of each file in order."""
    total_bytes, done_bytes = float(sum(info.bytes for info in layout)), 0.0
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="merge-write") as pool:
        for info in layout:
            for pieces in _merged_blocks(tensors_0, tensors_1, info, writers):
                pending.append(pool.submit(_append_all, writers, pieces))
                if len(pending) > PENDING_WRITES:
                    pending.pop(0).result()
            done_bytes += info.bytes
            if on_progress:
                on_progress(done_bytes, total_bytes, info.name)
        for future in pending:
            future.result()


def _merged_blocks(
    tensors_0: MappedTensors, tensors_1: MappedTensors, info: TensorInfo, writers: Sequence[CandidateWriter]
) -> Iterator[list["torch.Tensor"]]:
    """Yield for each block of a tensor pair its merged values, one tensor a candidate, in the output dtype."""
    from iar.methods.merging import OPERATORS, blocks, pair_statistics

    check_finite(tensors_0, info.name)
    check_finite(tensors_1, info.name)
    theta_0, theta_1 = tensors_0.flat(info.name), tensors_1.flat(info.name)
    recipes = [writer.recipe for writer in writers]
    statistics = pair_statistics(theta_0, theta_1, recipes)
    for block in blocks(theta_0, theta_1, recipes, info.name):
        square_delta = float(block.delta @ block.delta)
        pieces = [OPERATORS[r.operator](block, statistics, r.value).to(theta_0.dtype) for r in recipes]
        for writer, piece in zip(writers, pieces, strict=True):
            writer.distances.add(piece, block, square_delta)
            if not math.isfinite(writer.distances.square_to_base):
                raise PermanentError(
                    f"{writer.recipe.id}: tensor '{info.name}' exceeds the range of {info.dtype}; "
                    "the change from training is too large to merge"
                )
        yield pieces


def _append_all(writers: Sequence[CandidateWriter], pieces: Sequence["torch.Tensor"]) -> None:
    import torch

    for writer, piece in zip(writers, pieces, strict=True):
        writer.append(piece.view(torch.uint8).numpy().data)
