"""Training with DeepSpeed's ZeRO stages: the optimizer state, gradients and weights in parts on the ranks."""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from iar.config import TrainingSection
from iar.methods.batching import TokenRow, micro_batches, rank_parts
from iar.services.distributed import World
from iar.services.hardware import compute_dtype
from iar.services.memory import keep_freed_memory
from iar.services.restart import RestartPoint
from iar.services.train_engines import (
    MOMENTS,
    ZERO_BUCKET_ELEMENTS,
    Passes,
    StepGradient,
    adam,
    batch_loss,
    check_model,
    load_model,
    make_batch,
    plain_model,
    stored_dtype,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Result = TypeVar("Result")


class ZeroEngine:
    """DeepSpeed owns accumulation, reduction and update; fp32 masters and state lie in parts on the ranks.

    Stage 2: gradients in parts too. Stage 3: weights in parts as well, gathered block by block where they are used.
    """

    def __init__(self, folder: Path, settings: TrainingSection, world: World, stage: Literal[2, 3]) -> None:
        import deepspeed
        import torch

        deepspeed.utils.logger.setLevel(logging.WARNING)
        if world.device.type == "cpu":
            # DeepSpeed would compile an exchange through shared memory at run time; gloo is there.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        keep_freed_memory()
        self.settings = settings
        self.world = world
        self.stage = stage
        self.folder = folder
        self.dtype = compute_dtype(settings.compute_dtype)
        self.compute_dtype = str(self.dtype).removeprefix("torch.")
        self.model = self._load()
        self.parameters = sum(_whole_size(weight) for weight in self.model.parameters())
        self.engine, self.optimizer, *_ = deepspeed.initialize(
            model=_computation(self.model),
            optimizer=adam(list(self.model.parameters()), settings),
            config=self._config(self.parameters),
            dist_init_required=False,
        )
        with torch.no_grad():
            self.engine(lambda model: check_model(model, settings, world.device))
        self._take_fp32_masters()

    def _config(self, parameters: int) -> dict[str, Any]:
        bucket = min(ZERO_BUCKET_ELEMENTS, parameters)
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # set_gradient_accumulation_boundary says where a step ends
            "gradient_clipping": self.settings.max_gradient_norm,
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
            "zero_optimization": {
                "stage": self.stage,
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
                "stage3_prefetch_bucket_size": min(50_000_000, parameters),
            },
            "steps_per_print": 10**9,
        }
        if self.compute_dtype == "bfloat16":
            config["bf16"] = {"enabled": True}
        return config

    def _load(self) -> "PreTrainedModel":
        """Load the model; for stage 3 straight into parts, so that no rank ever holds it whole on its device."""
        if self.stage == 2:
            model = cast(Any, load_model(self.folder, self.settings, self.dtype)).to(self.world.device)
            return cast("PreTrainedModel", model)
        from transformers.integrations.deepspeed import HfDeepSpeedConfig

        loading = HfDeepSpeedConfig(self._config(ZERO_BUCKET_ELEMENTS))  # transformers sees it while it lives
        model = load_model(self.folder, self.settings, self.dtype)
        del loading
        return model

    def _take_fp32_masters(self) -> None:
        """Put what the compute dtype rounded away back into the masters, where the stored weights are finer."""
        import torch

        if self.dtype == torch.float32 or stored_dtype(self.folder) != torch.float32:
            return
        exact = load_model(self.folder, self.settings, torch.float32)
        for (_, weight), value in zip(self.model.named_parameters(), exact.parameters(), strict=True):
            self._set(weight, value.detach().to(self.world.device), None)

    def gradients(self, rows: Sequence[TokenRow]) -> StepGradient:
        """Take the gradient of one optimizer step on all its rows; DeepSpeed clips it in the update."""
        parts = [list(self._passes(part)) for part in rank_parts(rows, self.world.ranks)]
        own, count = parts[self.world.rank], max(map(len, parts))
        # Every rank makes as many passes, for the exchange in each; one more than it has weighs nothing.
        filler = [min(rows, key=lambda row: len(row.token_ids))]
        passes = Passes()
        for number in range(count):
            self.engine.set_gradient_accumulation_boundary(number + 1 == count)
            taken = own[number] if number < len(own) else filler
            batch = make_batch(taken, len(rows), self.settings.packing, self.world.device, self.dtype)
            loss, nll_P = self.engine(functools.partial(batch_loss, batch=batch))
            # DeepSpeed averages over ranks where the step's weights ask for the sum.
            self.engine.backward(loss * (self.world.ranks if taken is not filler else 0.0), scale_wrt_gas=False)
            if taken is not filler:
                passes.add(taken, batch, loss, nll_P)
        return passes.over_ranks(self.world, self._norm())

    def _passes(self, rows: Sequence[TokenRow]) -> Iterator[list[TokenRow]]:
        return micro_batches(rows, self.settings.micro_batch_tokens, padded=not self.settings.packing)

    def _norm(self) -> float:
        """Return the norm over all ranks' parts, which DeepSpeed marks with -1 where it is no number."""
        from deepspeed.runtime.utils import combine_grad_norm_groups

        if self.stage == 2:
            norm = float(self.optimizer.scaled_global_norm())
        else:
            norm = float(combine_grad_norm_groups(self.optimizer._get_norm_groups()))
        return norm if norm >= 0 else math.nan

    def update(self, rate: float) -> None:
        """Make the optimizer step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()

    def state(self) -> "dict[str, torch.Tensor]":
        """Return this rank's share of masters and optimizer state, gathered whole tensor by whole tensor."""
        tensors: dict[str, torch.Tensor] = {}
        for number, (name, weight) in enumerate(self.model.named_parameters()):
            for key in (None, *MOMENTS):
                whole = self._get(weight, key)
                if number % self.world.ranks == self.world.rank:
                    tensors[f"{key or 'master'}/{name}"] = whole.cpu()
        return tensors

    def load_state(self, point: RestartPoint) -> None:
        """Take up masters and optimizer state where a restart point left them."""
        import torch

        flats = self._flats()
        for flat in flats:
            moments = {key: torch.zeros_like(flat) for key in MOMENTS}
            step = torch.tensor(float(point.step), device=flat.device)
            self.optimizer.optimizer.state[flat] = {"step": step, **moments}
        if self.stage == 2:
            self.optimizer._lazy_init_hp_params_optimizer_state()
        for name, weight in self.model.named_parameters():
            for key in (None, *MOMENTS):
                self._set(weight, point.tensor(f"{key or 'master'}/{name}").to(self.world.device), key)
        self._refresh_weights()

    def _flats(self) -> "list[torch.Tensor]":
        """Return this rank's fp32 masters as the optimizer knows them."""
        groups = (
            self.optimizer.single_partition_of_fp32_groups
            if self.stage == 2
            else self.optimizer.fp32_partitioned_groups_flat
        )
        return list(groups)

    def _refresh_weights(self) -> None:
        """Write the masters into the weights of the compute dtype, on all ranks."""
        if self.stage == 2:
            self.optimizer.update_lp_params()
            return
        for number in range(len(self._flats())):
            self.optimizer._reassign_or_swap_out_partitioned_parameters(number)
        if kept_whole := self.optimizer.persistent_parameters:
            kept_whole[0].all_gather(kept_whole)

    def _get(self, weight: "torch.nn.Parameter", key: str | None) -> "torch.Tensor":
        """Return a whole fp32 master, or one of its moments; every rank takes part."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        whole = safe_get_full_optimizer_state(weight, key) if key else safe_get_full_fp32_param(weight)
        return cast("torch.Tensor", whole).detach()

    def _set(self, weight: "torch.nn.Parameter", whole: "torch.Tensor", key: str | None) -> None:
        """Put this rank's part of a whole fp32 master, or of one of its moments, in its place."""
        import deepspeed.utils as zero

        if self.stage == 2:
            setter = zero.safe_set_full_optimizer_state if key else zero.safe_set_full_fp32_param
            setter(*(weight, whole, key) if key else (weight, whole))
            return
        import torch

        size = cast(Any, weight).ds_tensor.numel()
        part = whole.flatten()[self.world.rank * size : (self.world.rank + 1) * size]
        part = torch.nn.functional.pad(part, (0, size - part.numel()))
        local = zero.safe_set_local_optimizer_state if key else zero.safe_set_local_fp32_param
        local(*(weight, part, key) if key else (weight, part))

    def finished_model(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the model with the master weights in `dtype`; None where another rank has it."""
        return self.snapshot(dtype)

    def snapshot(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the same as a copy: the training goes on."""
        import torch

        plain = plain_model(self.folder, dtype) if self.world.first else None
        places = dict(plain.named_parameters()) if plain is not None else {}
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                whole = self._get(weight, None)
                if name in places:
                    places[name].copy_(whole)
        return plain


def _whole_size(weight: "torch.Tensor") -> int:
    """Return the elements of a weight, of which stage 3 holds a part here."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def _computation(model: "PreTrainedModel") -> "torch.nn.Module":
    """Return a module whose forward pass is any computation with the model, which is what DeepSpeed wraps."""
    import torch

    class Computation(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            head = model.get_output_embeddings().weight
            if hasattr(head, "ds_id"):
                import deepspeed

                # The head is used without a call of its module, so stage 3 has to be told.
                deepspeed.zero.register_external_parameter(self, head)

        def forward(self, compute: Callable[["PreTrainedModel"], Result]) -> Result:
            return compute(self.model)

    return Computation()
