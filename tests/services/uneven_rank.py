"""One rank of a training whose last rank holds BALLAST bytes more: torchrun uneven_rank.py JOB_FOLDER."""

import json
import sys
from pathlib import Path

from iar.services.distributed import end_rank, join, leave
from iar.services.telemetry import peak_memory
from iar.services.trainer import TrainingJob, train_rank

BALLAST = 400_000_000


def main(folder: Path) -> None:
    """Train; the first rank writes the peak in the result and its own."""
    job, rows = TrainingJob.read(folder)
    world = join()
    held = b"\1" * BALLAST if world.rank == world.ranks - 1 else b""
    result = train_rank(job, rows, world, lambda step, steps, note: None)
    if result is not None:
        peaks = {"told": result.memory_bytes, "own": peak_memory(world.device)}
        (folder / "peaks.json").write_text(json.dumps(peaks))
    del held
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank(0)
