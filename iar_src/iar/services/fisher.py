"""How sure a model is of its weights: the squared gradients of its loss on examples, a tensor at a time."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iar.errors import PermanentError
from iar.methods.batching import TokenRow
from iar.records import TensorInformation, read_records
from iar.services.hardware import compute_dtype, shape_multiple

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

INFORMATION = "information.jsonl"
ROWS = 64  # of each kind: the mean of a tensor's thousands of elements needs few examples

Watch = Callable[[int, int], None]


def squared_gradients(folder: Path, rows: Sequence[TokenRow], on_row: Watch) -> dict[str, tuple[int, float]]:
    """Return for each tensor of a checkpoint its number of elements and their mean squared gradient over the rows.

    The loss of a row is the mean over its target tokens. A gradient is squared and dropped as soon as it is formed:
    memory is that of the model and its largest tensor. Raises PermanentError where a gradient is no number.
    """
    import torch

    model = _load(folder)
    parameters = dict(model.named_parameters())
    sums = dict.fromkeys(parameters, 0.0)

    def taking(name: str) -> "Callable[[torch.Tensor], None]":
        def take(parameter: "torch.Tensor") -> None:
            if parameter.grad is not None:
                sums[name] += float(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)) ** 2
                parameter.grad = None

        return take

    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(taking(name))
    for number, row in enumerate(rows, 1):
        _loss(model, row).backward()
        on_row(number, len(rows))
    if wrong := [name for name, total in sums.items() if not math.isfinite(total)]:
        raise PermanentError(f"{folder}: the gradient of tensor '{wrong[0]}' is no number; the training diverged")
    return {name: (one.numel(), sums[name] / len(rows) / one.numel()) for name, one in parameters.items()}


def _load(folder: Path) -> "PreTrainedModel":
    import torch
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=compute_dtype(), trust_remote_code=False
    )
    model.to("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[arg-type]
    model.eval()  # no dropout: the same rows give the same gradients
    return model


def _loss(model: "PreTrainedModel", row: TokenRow) -> "torch.Tensor":
    import torch
    from torch.nn.functional import cross_entropy

    # What is filled up behind the row is seen by none of its tokens, and no loss falls on it.
    length, multiple = len(row.token_ids), shape_multiple(model.device, model.dtype)
    filled = row.token_ids + row.token_ids[-1:] * (-length % multiple)
    ids_T = torch.tensor(filled, device=model.device)
    logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0]
    return cross_entropy(logits_TV[row.prompt_length - 1 : length - 1].float(), ids_T[row.prompt_length : length])


def read_information(folder: Path | None) -> list[TensorInformation]:
    """Return what the task `fisher` found; [] where there was none."""
    return list(read_records(folder / INFORMATION, TensorInformation)) if folder else []
