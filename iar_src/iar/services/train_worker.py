"""One rank of a training: `python -m iar.services.train_worker JOB`, started by torchrun, here or in a pod.

Who it is says the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK). JOB is a folder which, like the
model and the output folder, all ranks see, or s3://bucket/prefix/trainings/.../job/...@sha256:..., from where each node
brings what it needs. The exit code is that of the error; 4 asks for a restart.
"""

import os
import sys
import traceback
from pathlib import Path

from iar.errors import ExitCode
from iar.services.store import is_stored
from iar.services.training_job import RankEnd, RankInFolder, RankJob, exit_code


def main(argument: str) -> int:
    """Train as one rank; put the result or the error where the launcher finds it, and return the exit code."""
    from iar.services.distributed import join, leave
    from iar.services.guards import end_with_runner
    from iar.services.trainer import train_rank

    end_with_runner()
    rank = int(os.environ.get("RANK", "0"))
    mine = _job(argument, rank)
    try:
        job, rows = mine.read()
        train_rank(job, rows, join(), mine.tell, mine.keep)
        leave()
    except Exception as error:
        traceback.print_exc()
        mine.fail(RankEnd.of(rank, error))
        return exit_code(error)
    return int(ExitCode.DONE)


def _job(argument: str, rank: int) -> RankJob:
    if not is_stored(argument):
        return RankInFolder(Path(argument), rank)
    from iar.services.job_store import RankInStore

    return RankInStore(argument, rank)


if __name__ == "__main__":
    from iar.services.distributed import end_rank

    end_rank(main(sys.argv[1]))
