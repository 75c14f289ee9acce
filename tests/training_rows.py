"""Seven token rows of unlike lengths for the tiny model, and what plain autograd says of a step on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iar.methods.batching import TokenRow

ROWS = [
    TokenRow(f"row-{number}", "qa", (1, 2, 3, *((7 * number + 3 * p) % 300 + 5 for p in range(length))), prompt + 3)
    for number, (length, prompt) in enumerate([(9, 4), (12, 9), (30, 3), (7, 5), (21, 20), (16, 2), (11, 6)])
]


def plain_gradient(folder: Path, rows: Sequence[TokenRow]) -> tuple[float, dict[str, Any]]:
    """Return the loss of a step and the fp32 gradient by name: each row alone, torch's own cross entropy, one mean."""
    import torch
    from torch.nn import functional
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    losses = []
    for row in rows:
        logits = model(torch.tensor([row.token_ids])).logits[0, row.prompt_length - 1 : -1]
        losses.append(functional.cross_entropy(logits, torch.tensor(row.token_ids[row.prompt_length :])))
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), {name: weight.grad for name, weight in model.named_parameters()}
