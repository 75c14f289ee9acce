"""The engines of training: replicas (one, or several with summed gradients) and DeepSpeed's ZeRO stages.

All compute the same step: the gradient of the mean over the step's rows of the mean over a row's target tokens,
summed in fp32 over forward passes and ranks, clipped, and one AdamW update of fp32 masters.
"""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from iar.config import TrainingSection
from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.services.adapters import LoraSettings
from iar.services.distributed import World
from iar.services.hardware import shape_multiple
from iar.services.model_check import check_numbers
from iar.services.packing import Batch, pack_rows, pad_rows, register_attention
from iar.services.restart import RestartPoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

EngineName = Literal["single", "ddp", "zero2", "zero3"]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")
ZERO_BUCKET_ELEMENTS = 200_000_000


@dataclass(frozen=True)
class StepGradient:
    """What is known of a step before its update, the same on every rank.

    loss: mean over rows of the mean over target tokens; token_nll: summed over all target tokens, in nats;
    norm: of the whole gradient before clipping; positions: tokens computed; suspects: rows whose loss is not finite.
    """

    loss: float
    token_nll: float
    norm: float
    positions: int
    suspects: tuple[str, ...]

    @property
    def finite(self) -> bool:
        """Whether an update with this gradient is a number."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Engine(Protocol):
    """One model in training. Every rank makes the same calls with the same rows."""

    compute_dtype: str
    parameters: int

    @property
    def model(self) -> "PreTrainedModel":
        """The model whose gradients are taken."""

    def gradients(self, rows: Sequence[TokenRow]) -> StepGradient:
        """Take the gradient of one optimizer step on all its rows, clipped; nothing changes yet."""

    def update(self, rate: float) -> None:
        """Make the optimizer step."""

    def state(self) -> "dict[str, torch.Tensor]":
        """Return this rank's share of masters and optimizer state, whole tensors by name."""

    def load_state(self, point: RestartPoint) -> None:
        """Take up masters and optimizer state where a restart point left them."""

    def finished_model(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the model with the master weights in `dtype`; None where another rank has it."""

    def snapshot(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the same as a copy: the training goes on."""


def open_engine(
    name: EngineName, folder: Path, settings: TrainingSection, world: World, adapter: LoraSettings | None = None
) -> Engine:
    """Load the model in `folder` into the named engine. Raises UserError where it needs what is not there."""
    if name in ("single", "ddp"):
        from iar.services.train_replica import ReplicaEngine

        return ReplicaEngine(folder, settings, world, adapter)
    if adapter:
        raise UserError(
            f"platform.training_engine: {name} trains all weights, not a LoRA adapter; set platform.training_engine "
            "to auto, which trains one on any number of processes"
        )
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            f"platform.training_engine: {name} needs DeepSpeed, which is not installed; "
            "pip install 'iar[distributed]', or set platform.training_engine to ddp"
        )
    from iar.services.train_zero import ZeroEngine

    return ZeroEngine(folder, settings, world, 2 if name == "zero2" else 3)


@dataclass
class Passes:
    """Sums over the forward passes of one step on this rank."""

    loss: float = 0.0
    token_nll: float = 0.0
    positions: int = 0
    suspects: tuple[str, ...] = ()

    def add(self, rows: Sequence[TokenRow], batch: Batch, loss: "torch.Tensor", nll_P: "torch.Tensor") -> None:
        """Take in one forward pass."""
        value = float(loss.detach())
        self.loss += value
        self.token_nll += float(nll_P.detach()[batch.weights_P > 0].sum())
        self.positions += batch.positions
        if not math.isfinite(value):
            self.suspects += tuple(row.id for row in rows)

    def over_ranks(self, world: World, norm: float) -> StepGradient:
        """Return the step's figures, summed over ranks."""
        loss, token_nll, positions = world.sum([self.loss, self.token_nll, self.positions])
        suspects = self.suspects if math.isfinite(loss) else tuple(world.gather(self.suspects))
        return StepGradient(loss, token_nll, norm, int(positions), suspects)


def load_model(folder: Path, settings: TrainingSection, dtype: "torch.dtype") -> "PreTrainedModel":
    """Load a model for training, with the attention that the settings' batches need."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        trust_remote_code=False,
        # None: torch's, where the model has it.
        attn_implementation=register_attention() if settings.packing else None,
    )
    if settings.activation_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model


def plain_model(folder: Path, dtype: "torch.dtype") -> "PreTrainedModel":
    """Return the model of a folder as it is stored, to be filled with other weights."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
    return model


def stored_dtype(folder: Path) -> "torch.dtype":
    """Return the dtype that a model folder states, fp32 where it states none."""
    import torch
    from transformers import AutoConfig

    dtype: torch.dtype = AutoConfig.from_pretrained(folder, trust_remote_code=False).dtype or torch.float32
    return dtype


def make_batch(
    rows: Sequence[TokenRow], rows_in_step: int, packing: bool, device: "torch.device", dtype: "torch.dtype"
) -> Batch:
    """Return the rows of one forward pass as tensors."""
    return (pack_rows if packing else pad_rows)(rows, rows_in_step, device, shape_multiple(device, dtype))


def batch_loss(model: "PreTrainedModel", batch: Batch) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the weighted loss of one forward pass, and the negative log likelihood of each of its P targets."""
    from iar.methods.losses import target_loss

    hidden = model.get_decoder()(**batch.inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    head_VD = model.get_output_embeddings().weight
    return target_loss(hidden[batch.states_P], head_VD, batch.targets_P, batch.weights_P)


def check_model(model: "PreTrainedModel", settings: TrainingSection, device: "torch.device") -> None:
    """Raise UserError where the passes of this training would not compute the model's own losses."""

    def losses_of(rows: Sequence[TokenRow]) -> "torch.Tensor":
        batch = make_batch(rows, len(rows), settings.packing, device, model.dtype)
        return batch_loss(model, batch)[1][batch.weights_P > 0]

    check_numbers(model, losses_of, settings.packing, device)


def adam(weights: Any, settings: TrainingSection) -> "torch.optim.AdamW":
    """Return the optimizer; its rate is set at each step."""
    import torch

    return torch.optim.AdamW(
        weights,
        lr=settings.learning_rate,
        betas=ADAM_BETAS,
        eps=ADAM_EPSILON,
        weight_decay=settings.weight_decay,
        fused=True,
    )
