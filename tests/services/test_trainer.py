"""Training on a real two-layer model: right gradients, exact restart, repeatable results."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from iar.config import TrainingSection
from iar.errors import PermanentError
from iar.methods.batching import TokenRow
from iar.services.trainer import Trainer, learning_rate, train

ROWS = [
    TokenRow(f"row-{number}", "qa", (1, 2, 3, *((7 * number + 3 * p) % 300 + 5 for p in range(length))), prompt + 3)
    for number, (length, prompt) in enumerate([(9, 4), (12, 9), (30, 3), (7, 5), (21, 20), (16, 2), (11, 6)])
]
SETTINGS = TrainingSection(epochs=2, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e-9)


def ignore(step: int, steps: int, note: str) -> None:
    """No progress wanted."""


def stop_after(count: int) -> Callable[[int, int, str], None]:
    """Raise once `count` steps are done, as a kill between two steps would end the process."""

    def on_step(step: int, steps: int, note: str) -> None:
        if step == count:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 4096])
def test_gradient_of_a_step_equals_plain_autograd(tiny_model_folder: Path, micro_batch_tokens: int) -> None:
    settings = TrainingSection(
        compute_dtype="float32", micro_batch_tokens=micro_batch_tokens, max_gradient_norm=1e9, learning_rate=1e-3
    )
    trainer = Trainer(tiny_model_folder, settings)
    captured: dict[str, torch.Tensor] = {}
    trainer._update = lambda rate: captured.update({name: m.grad.clone() for name, m in trainer.masters.items()})
    facts = trainer.step(ROWS, rate=1e-3)

    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    losses = []
    for row in ROWS:
        logits = model(torch.tensor([row.token_ids])).logits[0, row.prompt_length - 1 : -1]
        losses.append(functional.cross_entropy(logits, torch.tensor(row.token_ids[row.prompt_length :])))
    torch.stack(losses).mean().backward()

    assert facts["loss"] == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    for name, weight in model.named_parameters():
        assert torch.allclose(captured[name], weight.grad, atol=1e-6), name


@pytest.mark.parametrize("interrupted_after", [1, 2, 4, 5])
def test_an_interrupted_training_ends_with_the_same_bits(
    tiny_model_folder: Path, tmp_path: Path, interrupted_after: int
) -> None:
    whole = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "whole", ignore)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "cut", stop_after(interrupted_after))
    resumed = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "cut", ignore)
    assert resumed.digest == whole.digest
    assert resumed.steps == whole.steps == 6
    logged = [json.loads(line)["step"] for line in (tmp_path / "cut" / "steps.jsonl").read_text().splitlines()]
    assert logged == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "cut" / "restart").exists()


def test_a_half_written_restart_point_is_not_seen(tiny_model_folder: Path, tmp_path: Path) -> None:
    whole = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "whole", ignore)
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, SETTINGS, 5, out, stop_after(4))
    point = next((out / "restart").iterdir())
    shutil.copy(point, out / "restart" / "step-00000005.part")
    with (out / "steps.jsonl").open("a") as log:
        log.write('{"step": 5, "torn')
    assert train(tiny_model_folder, ROWS, SETTINGS, 5, out, ignore).digest == whole.digest


def test_the_checkpoint_keeps_dtype_and_tied_head_of_the_base(tiny_model_folder: Path, tmp_path: Path) -> None:
    train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path, ignore)
    before = load_file(tiny_model_folder / "model.safetensors")
    after = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in after.items()} == {n: t.dtype for n, t in before.items()}
    assert "lm_head.weight" not in after
    assert not torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


def test_training_lowers_the_loss_on_its_rows(tiny_model_folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 40, "learning_rate": 3e-3, "checkpoint_seconds": 1e9})
    train(tiny_model_folder, ROWS, settings, 5, tmp_path, ignore)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.5 * losses[0]


def test_a_non_finite_loss_stops_before_the_weights_change(tiny_model_folder: Path) -> None:
    trainer = Trainer(tiny_model_folder, SETTINGS)
    name = "model.norm.weight"
    with torch.no_grad():
        dict(trainer.model.named_parameters())[name].fill_(math.inf)
    before = {key: master.clone() for key, master in trainer.masters.items()}
    with pytest.raises(PermanentError, match=r"loss nan .* on rows row-0, row-1, .*lower learning_rate"):
        trainer.step(ROWS, 1e-3)
    assert all(torch.equal(before[key], master) for key, master in trainer.masters.items())


def test_schedule_warms_up_then_falls_as_a_cosine_to_zero() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.05) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[52] == pytest.approx(0.5, abs=0.02)
    assert rates[-1] < 0.001
