"""Training with the whole model on every rank: one process, or several that sum their gradients."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from iar.config import TrainingSection
from iar.methods.batching import TokenRow, micro_batches, rank_parts
from iar.services.adapters import LoraSettings, attach, merged
from iar.services.distributed import World
from iar.services.hardware import compute_dtype
from iar.services.memory import keep_freed_memory
from iar.services.restart import RestartPoint
from iar.services.train_engines import (
    MOMENTS,
    Passes,
    StepGradient,
    adam,
    batch_loss,
    check_model,
    load_model,
    make_batch,
    plain_model,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# Elements that one all-reduce exchanges: large enough for the network, small enough to start early.
BUCKET_ELEMENTS = 25_000_000


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
        return self._with_masters(plain_model(self.folder, dtype))

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
