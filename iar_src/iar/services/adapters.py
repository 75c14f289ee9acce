"""LoRA (Hu et al. 2106.09685) through peft: low-rank factors beside every projection, trained alone, then merged.

Embedding and output head are left alone, so a tied head stays tied. The merge is made in fp32 on freshly loaded
weights: those of the training have been rounded to the compute dtype.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

WRAPPED = "base_model.model."
"""What peft puts before a parameter's name where it wraps the model instead of changing it."""


@dataclass(frozen=True)
class LoraSettings:
    """Rank of the factors, the alpha of their weight alpha / rank, and the seed of their first values."""

    rank: int
    alpha: float
    seed: int


def attach(model: "PreTrainedModel", settings: LoraSettings) -> None:
    """Put factors beside every linear layer but the head, and freeze all else; the model computes the same still.

    Only the factors are left with `requires_grad`. Raises UserError where peft is not installed.
    """
    import torch

    peft = _peft()
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        peft.inject_adapter_in_model(_config(peft, settings), model)


def merged(start: Path, settings: LoraSettings, factors: "Mapping[str, torch.Tensor]") -> "PreTrainedModel":
    """Return the model of folder `start` in fp32 with the trained factors added to its weights, as a plain model.

    `factors` are named as `attach` made them. Raises UserError where they are not those of this model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    peft = _peft()
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, trust_remote_code=False)
    wrapped: Any = peft.get_peft_model(model, _config(peft, settings))
    places = {name.removeprefix(WRAPPED): weight for name, weight in wrapped.named_parameters() if weight.requires_grad}
    if places.keys() != factors.keys():
        odd = sorted(places.keys() ^ factors.keys())
        raise UserError(f"{start}: factors do not fit this model, first {odd[0]}; train the adapter from this model")
    with torch.no_grad():
        for name, weight in places.items():
            weight.copy_(factors[name])
    plain: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True)
    return plain


def _config(peft: Any, settings: LoraSettings) -> Any:
    # Without dropout, which would make a restarted training differ from an uninterrupted one.
    return peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise UserError("baselines.recipes: lora needs the package peft; pip install 'iar[lora]'") from error
    return peft
