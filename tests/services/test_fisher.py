"""Squared gradients of a real two-layer model, against those of plain autograd."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from iar.errors import PermanentError
from iar.methods.batching import TokenRow
from iar.services.fisher import squared_gradients
from tests.services.merge_parents import derive

ROWS = [TokenRow("a", "qa", (5, 6, 7, 8, 9), 2), TokenRow("b", "qa", (3, 4, 10), 1)]


def nobody(done: int, rows: int) -> None:
    """Is told of every row."""


def test_they_are_the_mean_over_rows_and_elements_of_each_tensor(tiny_model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    expected: dict[str, float] = {}
    for row in ROWS:
        model.zero_grad()
        ids = torch.tensor([row.token_ids])
        log_p = model(input_ids=ids).logits[0].log_softmax(-1)
        targets = range(row.prompt_length, len(row.token_ids))
        loss = -sum(log_p[place - 1, row.token_ids[place]] for place in targets) / len(targets)
        loss.backward()
        for name, parameter in model.named_parameters():
            expected[name] = expected.get(name, 0.0) + float(parameter.grad.square().mean()) / len(ROWS)

    seen: list[tuple[int, int]] = []
    found = squared_gradients(tiny_model_folder, ROWS, lambda done, rows: seen.append((done, rows)))

    stored = load_file(tiny_model_folder / "model.safetensors")
    assert {name: size for name, (size, _) in found.items()} == {name: one.numel() for name, one in stored.items()}
    # in bfloat16 where the processor multiplies it
    assert {name: mean for name, (_, mean) in found.items()} == pytest.approx(expected, rel=0.02)
    assert min(expected.values()) > 0 and seen == [(1, 2), (2, 2)]
    assert squared_gradients(tiny_model_folder, ROWS, nobody) == found


def test_a_model_whose_gradients_are_no_numbers_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    norm = "model.norm.weight"
    torn = derive(tiny_model_folder, tmp_path / "torn", lambda t: t | {norm: torch.full_like(t[norm], torch.nan)})
    with pytest.raises(PermanentError, match=r"torn: the gradient of tensor '.*' is no number; the training diverged"):
        squared_gradients(torn, ROWS, nobody)
