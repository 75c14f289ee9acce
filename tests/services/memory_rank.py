"""One rank of a training that reports the most its tensors held: torchrun memory_rank.py MODEL SETTINGS ENGINE OUT."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from iar.config import TrainingSection
from iar.methods.batching import TokenRow
from iar.services.distributed import end_rank, join, leave
from iar.services.train_engines import open_engine

STEPS = 2


def rows_of(count: int, length: int) -> list[TokenRow]:
    """Return rows of one length that share no beginning."""
    return [
        TokenRow(f"row-{number}", "qa", tuple((7 * number + 3 * place) % 200 + 5 for place in range(length)), 4)
        for number in range(count)
    ]


def most_allocated(profile: Any) -> int:
    """Return the most bytes that were allocated at once during a profile with memory."""
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def main() -> None:
    """Make two steps; the first rank writes its peak in bytes."""
    folder, settings_json, engine_name, out = sys.argv[1:]
    settings = TrainingSection.model_validate_json(settings_json)
    world = join()
    length = min(settings.micro_batch_tokens, 256)
    rows = rows_of(world.ranks * settings.micro_batch_tokens // length, length)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        engine = open_engine(engine_name, Path(folder), settings, world)  # type: ignore[arg-type]
        for _ in range(STEPS):
            engine.gradients(rows)
            engine.update(1e-3)
    if world.first:
        Path(out).write_text(json.dumps(most_allocated(profile)))
    leave()


if __name__ == "__main__":
    main()
    end_rank(0)
