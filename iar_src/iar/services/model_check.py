"""Whether training computes a model's own numbers: seen on the model itself, on a few tokens, before the first step.

Training multiplies the last states with the output head's weight and sees several rows in one sequence. A model may
do otherwise (Granite and Cohere scale their logits, Gemma-2 caps them, Phi's head has a bias; convolutions and
recurrent layers read over the borders of packed rows), and its loss would be wrong without a sign.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from iar.errors import UserError
from iar.methods.batching import TokenRow

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# Short, so that a large share of the tokens stands near a border between rows.
LENGTHS = (6, 8, 5)
# Far apart in the vocabulary, and a prime.
STRIDE = 7919
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}
"""Median difference of the tokens' losses as a share of their mean: rounding can move one token far in bfloat16 (seen:
median 0.006 where the mean was 0.042), and a fault moves most."""


def check_numbers(
    model: "PreTrainedModel",
    losses_of: "Callable[[Sequence[TokenRow]], torch.Tensor]",
    packing: bool,
    device: "torch.device",
) -> None:
    """Compare `losses_of` rows, nats a target token in one pass, with those of the model's own logits, row by row.

    Raises UserError where a row alone has other losses, or rows in one pass have others than alone.
    """
    import torch

    rows = probe_rows(model.config.get_text_config().vocab_size)
    with torch.no_grad(), _evaluated(model):
        own_P = torch.cat([_own_losses(model, row, device) for row in rows])
        alone_P = torch.cat([losses_of([row]) for row in rows])
        together_P = losses_of(rows)
    kind, tolerance = model.config.model_type, TOLERANCE[str(model.dtype).removeprefix("torch.")]
    if (share := _difference(alone_P, own_P)) > tolerance:
        raise UserError(
            f"model.source: {kind} computes its logits in a way that training does not support, such as a scale, a cap "
            f"or a bias of its output head (without it, losses differ by {share:.1%}); use another model"
        )
    if (share := _difference(together_P, alone_P)) > tolerance:
        fix = "set inject.packing and align.packing to false" if packing else "use another model"
        raise UserError(
            f"model.source: rows of {kind} see each other in one {'packed' if packing else 'padded'} pass (losses "
            f"differ by {share:.1%} from those of each row alone); {fix}"
        )


def probe_rows(vocabulary: int) -> list[TokenRow]:
    """Return rows that share their first token and are trained on all others but the second."""
    rows, first = [], 0
    for length in LENGTHS:
        ids = tuple((STRIDE * place + 1) % vocabulary for place in range(first + 1, first + length))
        rows.append(TokenRow(f"probe of {length}", "check", (1, *ids), 2))
        first += length
    return rows


def _own_losses(model: "PreTrainedModel", row: TokenRow, device: "torch.device") -> "torch.Tensor":
    """Return the losses by the model's own logits, with the attention that is written out in its own code."""
    import torch

    ids_T = torch.tensor(row.token_ids, device=device)
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0, row.prompt_length - 1 : -1]
    model.set_attn_implementation(attention)
    return torch.nn.functional.cross_entropy(logits_TV.float(), ids_T[row.prompt_length :], reduction="none")


def _difference(found_P: "torch.Tensor", wanted_P: "torch.Tensor") -> float:
    return float((found_P - wanted_P).abs().median() / wanted_P.mean())


@contextlib.contextmanager
def _evaluated(model: "PreTrainedModel") -> Iterator[None]:
    """Without dropout meanwhile."""
    model.eval()
    yield
    model.train()
