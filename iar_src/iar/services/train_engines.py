"""The engines of training: replicas (one, or several with summed gradients) and DeepSpeed's ZeRO stages.

All compute the same step: the gradient of the mean over the step's rows of the mean over a row's target tokens,
summed in fp32 over forward passes and ranks, clipped, and one AdamW update of fp32 masters.
"""

import functools
import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from iar.config import TrainingSection
from iar.errors import UserError
from iar.methods.batching import TokenRow, micro_batches, rank_parts
from iar.services.adapters import LoraSettings, attach, merged
from iar.services.distributed import World
from iar.services.hardware import compute_dtype, shape_multiple
from iar.services.memory import keep_freed_memory
from iar.services.model_check import check_numbers
from iar.services.packing import Batch, pack_rows, pad_rows, register_attention
from iar.services.restart import RestartPoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Result = TypeVar("Result")
EngineName = Literal["single", "ddp", "zero2", "zero3"]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")
# Elements that one all-reduce exchanges: large enough for the network, small enough to start early.
BUCKET_ELEMENTS = 25_000_000
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


def _plain_model(folder: Path, dtype: "torch.dtype") -> "PreTrainedModel":
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


class ReplicaEngine:
    """Weights in the compute dtype and fp32 masters for the optimizer, whole on every rank.

    One rank that computes in fp32 has one copy: its weights are the masters, their gradients are summed by autograd.
    """

    def __init__(
        self, folder: Path, settings: TrainingSection, world: World | None = None, adapter: LoraSettings | None = None
    ) -> None:
        import torch

        keep_freed_memory()
        self.folder = folder
        self.settings = settings
        self.adapter = adapter
        self.world = world or World()
        self.device = self.world.device
        model = load_model(folder, settings, torch.float32)
        self.parameters = sum(weight.numel() for weight in model.parameters())
        if adapter:
            attach(model, adapter)
        dtype = compute_dtype(settings.compute_dtype)
        self.compute_dtype = str(dtype).removeprefix("torch.")
        self.one_copy = dtype == torch.float32 and self.world.ranks == 1
        # The masters are taken before the cast: what the compute dtype rounds away stays in them.
        self.masters: dict[str, torch.Tensor] = {
            name: weight if self.one_copy else weight.detach().clone().to(self.device)
            for name, weight in _trained(model)
        }
        # Before the cast, which would round in two ways what must be equal.
        check_model(model, settings, model.device)
        self.model: PreTrainedModel = cast(Any, model).to(self.device, dtype)
        self.weights: list[torch.Tensor] = [weight for _, weight in _trained(self.model)]
        self.gradient_flat: torch.Tensor | None = None
        self.gradient_views: list[torch.Tensor] = []
        if not self.one_copy:
            self.gradient_flat, self.gradient_views = self._new_gradients()
            for master, gradient in zip(self.masters.values(), self.gradient_views, strict=True):
                master.grad = gradient
        self.optimizer = adam(self.masters.values(), settings)

    def _new_gradients(self) -> "tuple[torch.Tensor | None, list[torch.Tensor]]":
        """Return the fp32 gradients: views of one flat tensor where ranks sum them."""
        import torch

        if self.world.ranks == 1:
            return None, [torch.zeros_like(master) for master in self.masters.values()]
        sizes = [master.numel() for master in self.masters.values()]
        flat = torch.zeros(sum(sizes), dtype=torch.float32, device=self.device)
        parts = zip(flat.split(sizes), self.masters.values(), strict=True)
        return flat, [part.view_as(master) for part, master in parts]

    def gradients(self, rows: Sequence[TokenRow]) -> StepGradient:
        """Take the gradient of one optimizer step on all its rows, clipped; nothing changes yet."""
        own = rows if self.world.ranks == 1 else rank_parts(rows, self.world.ranks)[self.world.rank]
        passes = Passes()
        for batch in micro_batches(own, self.settings.micro_batch_tokens, padded=not self.settings.packing):
            self._accumulate(batch, len(rows), passes, first=passes.positions == 0)
        if not own:
            self._no_gradient()
        self._sum_over_ranks()
        return passes.over_ranks(self.world, self._clip())

    def _accumulate(self, rows: Sequence[TokenRow], rows_in_step: int, passes: Passes, first: bool) -> None:
        import torch

        batch = make_batch(rows, rows_in_step, self.settings.packing, self.device, self.model.dtype)
        loss, nll_P = batch_loss(self.model, batch)
        loss.backward()
        passes.add(rows, batch, loss, nll_P)
        if self.one_copy:
            return
        with torch.no_grad():
            # Cast one by one: foreach casts all gradients first (fresh memory), and a mixed addition is not vectorised.
            for total, weight in zip(self.gradient_views, self.weights, strict=True):
                gradient = cast("torch.Tensor", weight.grad)
                total.copy_(gradient) if first else total.add_(gradient.float())
                weight.grad = None

    def _no_gradient(self) -> None:
        """Clear what the step before left, where this rank has no row of the step."""
        import torch

        torch._foreach_zero_(self.gradient_views)

    def _sum_over_ranks(self) -> None:
        """Add up the gradients of all ranks, once a step: the weights 1 / (|y| x rows) hold for the whole step."""
        if self.gradient_flat is None:
            return
        import torch

        pending = [
            torch.distributed.all_reduce(bucket, async_op=True) for bucket in self.gradient_flat.split(BUCKET_ELEMENTS)
        ]
        for work in pending:
            work.wait()

    def _clip(self) -> float:
        import torch

        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.settings.max_gradient_norm)
        return float(norm)

    def update(self, rate: float) -> None:
        """Make the optimizer step."""
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.one_copy:
            self.optimizer.zero_grad(set_to_none=True)
            return
        with torch.no_grad():
            torch._foreach_copy_(self.weights, list(self.masters.values()))

    def state(self) -> "dict[str, torch.Tensor]":
        """Return this rank's share of masters and optimizer state, whole tensors by name."""
        tensors: dict[str, torch.Tensor] = {}
        for name, master in _share(self.masters, self.world):
            tensors[f"master/{name}"] = master
            tensors |= {f"{key}/{name}": self.optimizer.state[master][key] for key in MOMENTS}
        return tensors

    def load_state(self, point: RestartPoint) -> None:
        """Take up masters and optimizer state where a restart point left them."""
        import torch

        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(point.tensor(f"master/{name}"))
                moments = {key: point.tensor(f"{key}/{name}").to(master.device) for key in MOMENTS}
                self.optimizer.state[master] = {"step": torch.tensor(float(point.step), device=self.device), **moments}
            if not self.one_copy:
                torch._foreach_copy_(self.weights, list(self.masters.values()))

    def finished_model(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the model with the master weights in `dtype`; None where another rank has it."""
        if self.adapter or not self.world.first:
            return self.snapshot(dtype)
        self.model.to(dtype)  # type: ignore[arg-type]
        return self._with_masters(self.model)

    def snapshot(self, dtype: "torch.dtype") -> "PreTrainedModel | None":
        """Return the same as a copy: the training goes on."""
        if not self.world.first:
            return None
        if self.adapter:
            whole = merged(self.folder, self.adapter, self.masters)
            return cast("PreTrainedModel", cast(Any, whole).to(dtype))
        return self._with_masters(_plain_model(self.folder, dtype))

    def _with_masters(self, model: "PreTrainedModel") -> "PreTrainedModel":
        import torch

        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(self.masters[name])
        return model


def _trained(model: "PreTrainedModel") -> "list[tuple[str, torch.nn.Parameter]]":
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def _share(tensors: "dict[str, torch.Tensor]", world: World) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the tensors that this rank writes: every rank-th."""
    for number, (name, tensor) in enumerate(tensors.items()):
        if number % world.ranks == world.rank:
            yield name, tensor


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

        plain = _plain_model(self.folder, dtype) if self.world.first else None
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
