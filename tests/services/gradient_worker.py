"""One rank that takes the gradients of steps with one engine; the first rank writes them down, whole.

    python -m tests.services.gradient_worker JOB.json

Started by torchrun. A case is packed or padded, one pass or several, a whole step, a short one, or one with fewer
rows than ranks.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from iar.config import TrainingSection
from iar.methods.batching import TokenRow, micro_batches
from iar.services.train_engines import Engine
from iar.services.train_replica import ReplicaEngine
from tests.training_rows import ROWS

ONE_PASS, SEVERAL_PASSES = 4096, 12
LEAST_PASSES = 3
STEPS = {"whole": ROWS, "short": ROWS[4:], "one row": ROWS[2:3]}


def settings_of(packing: bool, micro_batch_tokens: int, checkpointing: bool = False) -> TrainingSection:
    """Return settings under which a gradient is exact and never clipped."""
    return TrainingSection(
        compute_dtype="float32",
        packing=packing,
        micro_batch_tokens=micro_batch_tokens,
        activation_checkpointing=checkpointing,
        max_gradient_norm=1e9,
    )


def cases() -> list[tuple[str, TrainingSection]]:
    """Return the settings under which every engine must have the same gradient."""
    return [
        (f"{'packed' if packing else 'padded'}, {tokens} tokens", settings_of(packing, tokens))
        for packing, tokens in itertools.product((True, False), (ONE_PASS, SEVERAL_PASSES))
    ] + [("packed, recomputed", settings_of(True, SEVERAL_PASSES, checkpointing=True))]


def passes(rows: list[TokenRow], settings: TrainingSection) -> int:
    """Return the forward passes that these rows take."""
    return len(list(micro_batches(rows, settings.micro_batch_tokens, padded=not settings.packing)))


def whole_gradients(engine: Engine) -> dict[str, Any]:
    """Return the fp32 gradient of the step by name; all ranks take part."""
    if isinstance(engine, ReplicaEngine):
        return {name: master.grad.clone() for name, master in engine.masters.items() if master.grad is not None}
    from deepspeed.utils import safe_get_full_grad

    return {name: safe_get_full_grad(weight).clone() for name, weight in engine.model.named_parameters()}


def main(path: Path) -> None:
    """Take the gradient of every step under every case; losses go into `losses.json`."""
    from safetensors.torch import save_file

    from iar.services.distributed import join, leave
    from iar.services.train_engines import open_engine

    job = json.loads(path.read_text(encoding="utf-8"))
    world = join()
    tensors: dict[str, Any] = {}
    losses: dict[str, float] = {}
    for case, settings in cases():
        engine = open_engine(job["engine"], Path(job["model"]), settings, world)
        for step, rows in STEPS.items():
            losses[f"{case}/{step}"] = engine.gradients(rows).loss
            tensors |= {f"{case}/{step}/{name}": grad for name, grad in whole_gradients(engine).items()}
            engine.update(0.0)  # leaves the weights and forgets the gradient
    if world.first:
        save_file(tensors, path.with_name("gradients.safetensors"))
        path.with_name("losses.json").write_text(json.dumps(losses), encoding="utf-8")
    world.barrier()
    leave()


if __name__ == "__main__":
    from iar.services.distributed import end_rank

    main(Path(sys.argv[1]))
    end_rank(0)
