"""The weights at the end of each epoch but the last, for those who look at a training after it.

OUT/epochs/epoch-001/    a checkpoint folder, whole or absent; whoever has looked at it removes it
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from iar.services.models import load_tokenizer, save_checkpoint

if TYPE_CHECKING:
    from iar.services.distributed import World
    from iar.services.train_engines import Engine
    from iar.services.training_job import TrainingJob

EPOCHS = "epochs"


def epoch_folder(out: Path, epoch: int) -> Path:
    """Return where the weights at the end of an epoch, counted from 1, lie."""
    return out / EPOCHS / f"epoch-{epoch:03d}"


def keep_epoch(job: "TrainingJob", engine: "Engine", world: "World", epoch: int) -> None:
    """Write the weights as they are, in the dtype of the model that the training started from; all ranks call this.

    Nothing of the training changes: it goes on with the same bits.
    """
    from iar.services.train_engines import stored_dtype

    model = engine.snapshot(stored_dtype(job.start))
    if world.first:
        folder = epoch_folder(job.out, epoch)
        folder.parent.mkdir(exist_ok=True)
        save_checkpoint(cast(Any, model), load_tokenizer(job.start), folder)
    world.barrier()
