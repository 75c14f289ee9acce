"""All candidates of a grid in one pass over the checkpoints: each tensor is read once, block by block.

Memory: the checkpoints are mapped, and a tensor's pages given back when it is merged; beside them stand a few blocks a
thread. Blocks are computed by one set of threads and hashed and written by another, which the disk may hold up; the
blocks of a file, and the sums behind the facts, keep their order, so threads change no bit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iar.methods.merge_facts import Sums
from iar.methods.merge_grid import SETS, SEVERAL, Recipe
from iar.records import Candidate
from iar.services.checkpoints import MappedTensors, TensorInfo, plan_shards, safetensors_header
from iar.services.hardware import usable_cores
from iar.services.merge_checks import (
    check_device,
    check_finite,
    check_in_range,
    check_same_tokenizer,
    check_set_weights,
    shared_layout,
)
from iar.services.merge_writers import CandidateWriter, check_disk, fresh_part, remove_parts

if TYPE_CHECKING:
    import torch

    from iar.methods.merging import PairStatistics

CUDA_BLOCK_ELEMENTS = 1 << 24  # a launch a block: 64 MiB in fp32 hide it
WAITING_BLOCKS = 4  # computed and not yet written; more hide no more of the disk's pauses

ReportProgress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class MergeSettings:
    """How candidates are merged. `shard_bytes`, `tuned_too` and `earlier` alone change a bit on a CPU.

    `tuned_too` are the folders of further checkpoints, `earlier` of what the model was after each earlier document set,
    the oldest first; `threads` None is one a CPU that this process may use.
    """

    shard_bytes: float = 5e9
    threads: int | None = None
    device: str = "cpu"
    tuned_too: tuple[Path, ...] = ()
    earlier: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Parents:
    """The mapped checkpoints of a merge: theta_0, the tuned ones, align's first, and those of earlier document sets."""

    base: MappedTensors
    tuned: tuple[MappedTensors, ...]
    earlier: tuple[MappedTensors, ...] = ()

    def check_finite(self, name: str) -> None:
        """Raise PermanentError naming a checkpoint in which a tensor has a value that is NaN or infinite."""
        for tensors in self._all:
            check_finite(tensors, name)

    def release(self, name: str) -> None:
        """Give the memory of a tensor back."""
        for tensors in self._all:
            tensors.release(name)

    @property
    def _all(self) -> tuple[MappedTensors, ...]:
        return self.base, *self.tuned, *self.earlier


class Taker(Protocol):
    """What takes the merged blocks of one recipe in their order, and the sums of each tensor by its name."""

    recipe: Recipe
    sums: dict[str, Sums]

    def append(self, data: memoryview) -> None:
        """Take the next bytes."""


def merge_candidates(
    base: Path,
    tuned: Path,
    recipes: Sequence[Recipe],
    out: Path,
    parents: Mapping[str, str],
    on_progress: ReportProgress | None = None,
    settings: MergeSettings | None = None,
) -> list[Candidate]:
    """Write one Hugging Face folder a recipe, `out/<recipe id>`, in the base model's dtype; return what came out.

    `parents` (role -> digest) goes into each folder's `checkpoint.json`. Raises UserError where the checkpoints do
    not belong together or the disk is too small, PermanentError for a value that is NaN or infinite; then nothing
    of this call stays in `out`.
    """
    if not recipes:
        return []
    settings = settings or MergeSettings()
    check_device(settings.device)
    mapped, layout = mapped_parents(base, tuned, recipes, settings)
    shards = plan_shards(layout, settings.shard_bytes)
    headers = sum(len(safetensors_header(tensors)) for tensors in shards.values())
    out.mkdir(parents=True, exist_ok=True)
    remove_parts(out)
    check_disk(out, (headers + sum(info.bytes for info in layout)) * len(recipes))
    with ExitStack() as stack:
        stack.callback(remove_parts, out)
        stack.enter_context(one_torch_thread())
        parts = [fresh_part(out, recipe) for recipe in recipes]
        writers = [
            stack.enter_context(closing(CandidateWriter(recipe, part, shards)))
            for recipe, part in zip(recipes, parts, strict=True)
        ]
        stream(mapped, layout, writers, settings, on_progress or (lambda done, total, note: None))
        return [writer.finish(base, parents) for writer in writers]


def mapped_parents(
    base: Path, tuned: Path, recipes: Sequence[Recipe], settings: MergeSettings
) -> tuple[Parents, list[TensorInfo]]:
    """Return the checkpoints that the recipes merge, and the tensors that come out.

    Raises UserError where one of them does not belong to the base, or sets and their weights do not match.
    """
    several = any(recipe.operator in SEVERAL for recipe in recipes)
    of_sets = [recipe for recipe in recipes if recipe.operator == SETS]
    for recipe in of_sets:
        check_set_weights(recipe.id, len(recipe.layers), len(settings.earlier) + 1)
    folders = (tuned, *(settings.tuned_too if several else ()))
    before = settings.earlier if of_sets else ()
    for folder in (*folders, *before):
        check_same_tokenizer(base, folder)
    mapped = Parents(MappedTensors(base), tuple(map(MappedTensors, folders)), tuple(map(MappedTensors, before)))
    layout, *_ = (shared_layout(mapped.base, tensors) for tensors in (*mapped.tuned, *mapped.earlier))
    return mapped, layout


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute each operation on the thread that calls it: blocks are too small to share.

    On a busy machine the barrier after each shared operation costs a hundred times the operation.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def stream(
    parents: Parents,
    layout: Sequence[TensorInfo],
    writers: Sequence[Taker],
    settings: MergeSettings,
    on_progress: ReportProgress,
) -> None:
    """Examine each tensor while the one before it is merged, merge its blocks, write them in their order."""
    import torch

    from iar.methods.merge_blocks import BLOCK_ELEMENTS
    from iar.methods.merging import draw_seed

    recipes = [writer.recipe for writer in writers]
    seed, threads = draw_seed(recipes), settings.threads or usable_cores()
    size = BLOCK_ELEMENTS if settings.device == "cpu" else CUDA_BLOCK_ELEMENTS
    total_bytes, done_bytes = float(sum(info.bytes for info in layout)), 0.0
    with ThreadPoolExecutor(threads, "merge", torch.set_num_threads, (1,)) as pool, _Output(writers, threads) as output:
        examine = partial(examine_tensor, parents, recipes)
        ahead = pool.submit(examine, layout[0])
        for number, info in enumerate(layout, start=1):
            statistics = ahead.result()
            if number < len(layout):
                ahead = pool.submit(examine, layout[number])
            merge = partial(merge_block, parents, recipes, statistics, info, seed, settings.device)
            for start in range(0, info.elements, size):
                output.add(info, pool.submit(merge, slice(start, min(start + size, info.elements))))
            output.after(partial(parents.release, info.name))
            done_bytes += info.bytes
            on_progress(done_bytes, total_bytes, info.name)
        output.drain()


def examine_tensor(parents: Parents, recipes: Sequence[Recipe], info: TensorInfo) -> "PairStatistics":
    """Return what the operators need to know of a whole tensor. Raises PermanentError for NaN or infinity in it."""
    from iar.methods.merging import pair_statistics

    parents.check_finite(info.name)
    return pair_statistics(parents.base.flat(info.name), parents.tuned[0].flat(info.name), recipes, info.name)


def merge_block(
    parents: Parents,
    recipes: Sequence[Recipe],
    statistics: "PairStatistics",
    info: TensorInfo,
    seed: int | None,
    device: str,
    span: slice,
) -> list[tuple["torch.Tensor", Sums]]:
    """Return for each recipe the merged values of a block in the output dtype, and their sums."""
    from iar.methods.merge_blocks import read_block
    from iar.methods.merge_facts import sums_of
    from iar.methods.merging import OPERATORS

    theta_0 = parents.base.flat(info.name)
    tuned, earlier = ([one.flat(info.name) for one in tensors] for tensors in (parents.tuned, parents.earlier))
    block = read_block(theta_0, tuned, span, info.name, seed, device, earlier)
    delta_square = float(block.delta @ block.delta)
    merged = []
    for recipe in recipes:
        piece = OPERATORS[recipe.operator](block, statistics, recipe).to(theta_0.dtype)
        merged.append((piece.cpu(), sums_of(piece, block.theta_0, block.delta, delta_square)))
    return merged


class _Output:
    """Blocks on their way to the files, a bounded number: computed in any order, written in theirs.

    Each file belongs to one writing thread.
    """

    def __init__(self, writers: Sequence[Taker], threads: int) -> None:
        self._writers, self._ahead = writers, 2 * threads
        self._threads = [ThreadPoolExecutor(1, "write") for _ in range(min(threads, len(writers)))]
        self._computing: deque[tuple[TensorInfo, Future[list[tuple[torch.Tensor, Sums]]]] | Callable[[], None]] = (
            deque()
        )
        self._writing: deque[list[Future[None]]] = deque()

    def __enter__(self) -> "_Output":
        return self

    def __exit__(self, *exception: object) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def add(self, info: TensorInfo, merged: "Future[list[tuple[torch.Tensor, Sums]]]") -> None:
        """Take the next block; hand the oldest on where more than a few are being computed."""
        self._computing.append((info, merged))
        while len(self._computing) > self._ahead:
            self._hand_on()

    def after(self, action: Callable[[], None]) -> None:
        """Do something when all blocks so far are computed."""
        self._computing.append(action)

    def drain(self) -> None:
        """Write all that waits."""
        while self._computing:
            self._hand_on()
        self._settle(0)

    def _hand_on(self) -> None:
        entry = self._computing.popleft()
        if callable(entry):
            entry()
            return
        info, merged = entry
        blocks = merged.result()
        for writer, (_, sums) in zip(self._writers, blocks, strict=True):
            writer.sums[info.name] = writer.sums.get(info.name, Sums()) + sums
            check_in_range(writer.recipe.id, info, sums)
        pieces = [(writer, piece) for writer, (piece, _) in zip(self._writers, blocks, strict=True)]
        count = len(self._threads)
        self._writing.append(
            [thread.submit(_append, pieces[number::count]) for number, thread in enumerate(self._threads)]
        )
        self._settle(WAITING_BLOCKS)

    def _settle(self, left: int) -> None:
        """Wait until no more than `left` blocks are being written. Raises what writing one raised."""
        while len(self._writing) > left:
            for written in self._writing.popleft():
                written.result()


def _append(pieces: "Sequence[tuple[Taker, torch.Tensor]]") -> None:
    import torch

    for writer, piece in pieces:
        writer.append(piece.view(torch.uint8).numpy().data)
