"""The training loop of Inject, Align and the vanilla reference.

fp32 master weights and AdamW state, bf16 forward and backward, fp32 gradient accumulation, cosine schedule
with a linear warm-up, restart points that make a killed run end with the same bits.
"""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from iar.config import TrainingSection
from iar.errors import PermanentError
from iar.methods.batching import TokenRow, micro_batches, step_batches
from iar.services.hardware import compute_dtype
from iar.services.memory import keep_freed_memory
from iar.services.models import load_tokenizer, save_checkpoint
from iar.services.packing import pack_rows, register_attention
from iar.services.restart import RestartPoints

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training reports: steps done, trained tokens, the compute dtype and the weights' digest."""

    steps: int
    tokens: int
    target_tokens: int
    final_loss: float
    seconds: float
    compute_dtype: str
    digest: str


def learning_rate(step: int, steps: int, peak: float, warmup_share: float) -> float:
    """Return the rate of optimizer step `step` (from 0) of `steps`: linear warm-up, then cosine to zero."""
    warmup = math.ceil(warmup_share * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Trainer:
    """One model in training: weights in the compute dtype, fp32 masters for the optimizer."""

    def __init__(self, folder: Path, settings: TrainingSection) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        keep_freed_memory()
        self.settings = settings
        self.stored_dtype = AutoConfig.from_pretrained(folder, trust_remote_code=False).dtype or torch.float32
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, attn_implementation=register_attention()
        )
        # The masters are taken before the cast: what the compute dtype rounds away stays in them.
        self.masters = {name: weight.detach().clone().to(self.device) for name, weight in model.named_parameters()}
        dtype = compute_dtype(settings.compute_dtype)
        self.compute_dtype = str(dtype).removeprefix("torch.")
        self.model: PreTrainedModel = cast(Any, model).to(self.device, dtype)
        self.model.train()
        self.weights = list(self.model.parameters())
        self.gradients = [torch.zeros_like(master) for master in self.masters.values()]
        for master, gradient in zip(self.masters.values(), self.gradients, strict=True):
            master.grad = gradient
        self.optimizer = torch.optim.AdamW(
            self.masters.values(),
            lr=settings.learning_rate,
            betas=ADAM_BETAS,
            eps=ADAM_EPSILON,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, rows: Sequence[TokenRow], rate: float) -> dict[str, float]:
        """Make one optimizer step on `rows`; return its losses and gradient norm.

        Raises PermanentError before the weights change where the loss or the norm is not finite.
        """
        loss, token_nll = 0.0, 0.0
        for batch in micro_batches(rows, self.settings.micro_batch_tokens):
            batch_loss, batch_nll = self._accumulate(batch, len(rows))
            loss += batch_loss
            token_nll += batch_nll
        norm = self._clip()
        if not math.isfinite(loss) or not math.isfinite(norm):
            names = ", ".join(row.id for row in rows[:8])
            raise PermanentError(f"training: loss {loss} and gradient norm {norm} on rows {names}; lower learning_rate")
        self._update(rate)
        target_tokens = sum(row.target_length for row in rows)
        return {"loss": loss, "token_loss": token_nll / target_tokens, "gradient_norm": norm}

    def _accumulate(self, batch: Sequence[TokenRow], rows_in_step: int) -> tuple[float, float]:
        import torch

        from iar.methods.losses import target_loss

        packed = pack_rows(batch, rows_in_step, self.device)
        hidden_1ND = self.model.get_decoder()(
            input_ids=packed.ids_1N,
            position_ids=packed.position_ids_1N,
            packing=packed.packing,
            use_cache=False,
        ).last_hidden_state
        head_VD = self.model.get_output_embeddings().weight
        loss, nll_P = target_loss(hidden_1ND[0, packed.states_P], head_VD, packed.targets_P, packed.weights_P)
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(self.gradients, [cast("torch.Tensor", weight.grad) for weight in self.weights])
            for weight in self.weights:
                weight.grad = None
        return float(loss.detach()), float(nll_P.detach().sum())

    def _clip(self) -> float:
        import torch

        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.settings.max_gradient_norm)
        return float(norm)

    def _update(self, rate: float) -> None:
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, list(self.masters.values()))
            torch._foreach_zero_(self.gradients)

    def finished_model(self) -> "PreTrainedModel":
        """Return the model with the master weights in the dtype that the start folder was written in."""
        import torch

        self.model.to(self.stored_dtype)  # type: ignore[arg-type]
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(self.masters[name])
        return self.model

    def state(self) -> dict[str, "torch.Tensor"]:
        """Return masters and optimizer state by name, as stored in a restart point."""
        tensors = {f"master/{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            for key, value in self.optimizer.state[master].items():
                tensors[f"{key}/{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, "torch.Tensor"]) -> None:
        """Take up masters and optimizer state where a restart point left them."""
        import torch

        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(tensors[f"master/{name}"])
                self.optimizer.state[master] = {
                    key: tensors[f"{key}/{name}"].to(master.device) if key != "step" else tensors[f"{key}/{name}"]
                    for key in ("step", "exp_avg", "exp_avg_sq")
                }
            torch._foreach_copy_(self.weights, list(self.masters.values()))


def train(
    start: Path,
    rows: Sequence[TokenRow],
    settings: TrainingSection,
    seed: int,
    out: Path,
    on_step: Callable[[int, int, str], None],
) -> TrainingResult:
    """Train the model in `start` on `rows` and write `out/checkpoint` and `out/steps.jsonl`.

    Goes on from the newest restart point under `out`, if an earlier attempt left one, and then ends with
    the same bits as an attempt that was never interrupted.
    """
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(start, settings)
    points = RestartPoints(out / "restart")
    log = StepLog(out / "steps.jsonl")
    done, tensors = points.load()
    if tensors:
        trainer.load_state(tensors)
    log.truncate(done)
    batches = list(step_batches(rows, settings.batch_size, seed, settings.epochs))
    saved = time.monotonic()
    for step, (epoch, batch) in enumerate(batches[done:], start=done):
        started = time.monotonic()
        rate = learning_rate(step, len(batches), settings.learning_rate, settings.warmup_share)
        facts: dict[str, float] = {"step": step + 1, "steps": len(batches), "epoch": epoch + 1, "learning_rate": rate}
        facts |= trainer.step(batch, rate)
        facts["tokens"] = sum(len(row.token_ids) for row in batch)
        facts["target_tokens"] = sum(row.target_length for row in batch)
        facts["seconds"] = time.monotonic() - started
        log.append(facts)
        on_step(step + 1, len(batches), f"loss {facts['loss']:.3f}")
        if time.monotonic() - saved > settings.checkpoint_seconds and step + 1 < len(batches):
            points.save(step + 1, trainer.state())
            saved = time.monotonic()
    digest = save_checkpoint(trainer.finished_model(), load_tokenizer(start), out / "checkpoint")
    points.clear()
    return summarise(log.read(), trainer.compute_dtype, digest)


def summarise(steps: Sequence[dict[str, Any]], compute_dtype: str, digest: str) -> TrainingResult:
    """Return the totals of a step log."""
    return TrainingResult(
        steps=len(steps),
        tokens=int(sum(step["tokens"] for step in steps)),
        target_tokens=int(sum(step["target_tokens"] for step in steps)),
        final_loss=float(steps[-1]["loss"]),
        seconds=float(sum(step["seconds"] for step in steps)),
        compute_dtype=compute_dtype,
        digest=digest,
    )


class StepLog:
    """One JSON line an optimizer step; lines past the restart point are dropped before going on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def truncate(self, steps: int) -> None:
        """Keep the first `steps` lines; a torn last line goes with the rest."""
        lines = self.path.read_text().splitlines()[:steps] if self.path.exists() else []
        part = self.path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in lines))
        part.replace(self.path)

    def append(self, facts: dict[str, float]) -> None:
        """Add one step."""
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Return all steps, in order."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]
