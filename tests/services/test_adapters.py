"""LoRA on a two-layer model: starts as the model itself, merges into W + alpha / rank B A, leaves the head alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from iar.errors import UserError
from iar.services.adapters import LoraSettings, attach, merged

pytest.importorskip("peft")
SETTINGS = LoraSettings(rank=3, alpha=12.0, seed=7)
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def load(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def factors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def with_random_factors(folder: Path) -> PreTrainedModel:
    model = load(folder)
    attach(model, SETTINGS)
    generator = torch.Generator().manual_seed(1)
    for weight in factors_of(model).values():
        weight.copy_(0.05 * torch.randn(weight.shape, generator=generator))
    return model


def test_attached_factors_change_nothing_yet_and_are_all_that_is_trained(tiny_model_folder: Path) -> None:
    model, plain = load(tiny_model_folder), load(tiny_model_folder)
    attach(model, SETTINGS)
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    projections = {name for name, _ in plain.named_parameters() if name.endswith("_proj.weight")}
    assert len(factors_of(model)) == 2 * len(projections)
    assert not model.get_output_embeddings().weight.requires_grad
    assert not model.get_input_embeddings().weight.requires_grad


def test_first_values_come_from_the_seed_and_leave_other_draws_alone(tiny_model_folder: Path) -> None:
    models = [load(tiny_model_folder) for _ in range(3)]
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    attach(models[0], SETTINGS)
    assert torch.equal(torch.rand(1), before)
    attach(models[1], SETTINGS)
    attach(models[2], LoraSettings(3, 12.0, 8))
    first, second, other = map(factors_of, models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_merge_is_the_formula_in_plain_torch(tiny_model_folder: Path) -> None:
    model, plain = with_random_factors(tiny_model_folder), load(tiny_model_folder)
    factors = factors_of(model)
    whole = merged(tiny_model_folder, SETTINGS, factors)
    before = dict(plain.named_parameters())
    for name, weight in whole.named_parameters():
        place = name.removesuffix(".weight")
        expected = before[name]
        if f"{place}.lora_A.default.weight" in factors:
            product = factors[f"{place}.lora_B.default.weight"] @ factors[f"{place}.lora_A.default.weight"]
            expected = expected + SETTINGS.alpha / SETTINGS.rank * product
        assert torch.allclose(weight, expected, atol=1e-7), name
    assert torch.allclose(whole(IDS).logits, model(IDS).logits, atol=1e-5)


def test_the_merged_model_is_a_plain_one_with_its_head_still_tied(tiny_model_folder: Path, tmp_path: Path) -> None:
    model = with_random_factors(tiny_model_folder)
    whole = merged(tiny_model_folder, SETTINGS, factors_of(model))
    assert type(whole) is type(load(tiny_model_folder))
    assert whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    whole.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    assert torch.equal(load(tmp_path)(IDS).logits, whole(IDS).logits)


def test_factors_of_another_model_are_refused(tiny_model_folder: Path) -> None:
    factors = factors_of(with_random_factors(tiny_model_folder))
    factors.pop(next(iter(factors)))
    with pytest.raises(UserError, match=r"factors do not fit this model, first .*lora_A.*; train the adapter from"):
        merged(tiny_model_folder, SETTINGS, factors)
