"""All shards of the QA build on this machine: one in this process, several as processes that run at once."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from iar.config import QaBuildSection
from iar.errors import TemporaryError
from iar.services.guards import end_with
from iar.services.qa_documents import Prepared
from iar.services.qa_lessons import share_of_servers, teach_shard

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray

    Done = SynchronizedArray[float]

POLL_SECONDS = 0.2


def teach_all(
    settings: QaBuildSection,
    prepared: Prepared,
    base: Path | None,
    state: Path,
    seed: int,
    aside: Path,
    on_progress: Callable[[float, float], None],
) -> list[Path]:
    """Return the folders of all shards, made below `aside`.

    Raises what a shard raises first, when all have ended, and TemporaryError where one was killed.
    """
    shards = settings.shards
    folders = [aside / f"shard-{shard}" for shard in range(1, shards + 1)]
    for folder in folders:
        folder.mkdir()
    if shards == 1:
        teach_shard(settings, prepared, base, state, seed, folders[0], on_progress=on_progress)
        return folders
    # Processes that are forks would share open databases and locks with this one.
    start = multiprocessing.get_context("spawn")
    done: Done = start.Array("d", shards)
    total = prepared.count()
    with ProcessPoolExecutor(shards, start, _begin, (done, os.getpid())) as pool:
        work = [
            pool.submit(_teach, share_of_servers(settings), prepared, base, state, seed, folder, shard, shards)
            for shard, folder in enumerate(folders, 1)
        ]
        while wait(work, POLL_SECONDS).not_done:
            on_progress(sum(done[:]) / shards, total)
    _raise_first(work)
    return folders


def _raise_first(work: "Sequence[Future[None]]") -> None:
    for shard, future in enumerate(work, 1):
        try:
            future.result()
        except BrokenProcessPool as error:
            raise TemporaryError(
                f"qa-build: the process of shard {shard} of {len(work)} was killed, perhaps for its memory: run again, "
                "or with fewer qa_build.shards"
            ) from error


_done: "Done"


def _begin(done: "Done", parent: int) -> None:
    """Set up a process of the pool, which ends with the one that started it."""
    global _done
    _done = done
    end_with(parent)


def _teach(
    settings: QaBuildSection, prepared: Prepared, base: Path | None, state: Path, seed: int, folder: Path, shard: int,
    shards: int,
) -> None:  # fmt: skip
    def report(so_far: float, total: float) -> None:
        _done[shard - 1] = so_far

    teach_shard(settings, prepared, base, state, seed, folder, shard, shards, report)
