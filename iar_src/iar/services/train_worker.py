"""One rank of a training: `python -m iar.services.train_worker JOB_FOLDER`, started by torchrun, here or in a pod.

Who it is says the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK). The job folder, the model and
the output folder are the same files for all ranks. The exit code is that of the error; 4 asks for a restart.
"""

import contextlib
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from iar.errors import ExitCode, IarError
from iar.records import write_json

RESULT = "result.json"
ERRORS = "error-*.json"
# An error that only says that another rank is gone.
LOST = "lost"


def main(folder: Path) -> int:
    """Train as one rank; write down the result or the error, and return the exit code."""
    from iar.services.distributed import World, join, leave
    from iar.services.guards import end_with_runner
    from iar.services.trainer import TrainingJob, train_rank

    end_with_runner()
    world = World()
    # What this rank said before its pods were suspended is over.
    (folder / ERRORS.replace("*", os.environ.get("RANK", "0"))).unlink(missing_ok=True)
    try:
        job, rows = TrainingJob.read(folder)
        world = join()
        result = train_rank(job, rows, world, lambda step, steps, note: None)
        if result is not None:
            write_json(folder / RESULT, asdict(result))
        leave()
    except Exception as error:
        traceback.print_exc()
        return _report(folder, world.rank, error)
    return int(ExitCode.DONE)


def _report(folder: Path, rank: int, error: Exception) -> int:
    kind = type(error).__name__ if isinstance(error, IarError) else LOST if _peer_is_gone(error) else "bug"
    message = str(error) if isinstance(error, IarError) else f"unexpected {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # a full disk must not hide the error itself
        write_json(folder / ERRORS.replace("*", str(rank)), {"rank": rank, "kind": kind, "message": message})
    return int(error.exit_code) if isinstance(error, IarError) else int(ExitCode.BUG)


def _peer_is_gone(error: Exception) -> bool:
    import torch

    lost = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, torch.distributed.DistError) or any(word in str(error) for word in lost)


if __name__ == "__main__":
    from iar.services.distributed import end_rank

    end_rank(main(Path(sys.argv[1])))
