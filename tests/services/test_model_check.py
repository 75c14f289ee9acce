"""A model whose own numbers training would not compute is refused before the first step, under every engine."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GemmaConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from iar.config import PlatformSection
from iar.errors import UserError
from iar.records import EvalItem
from iar.services.engine import Engine
from iar.services.models import load_tokenizer
from iar.services.train_replica import ReplicaEngine
from iar.services.trainer import train
from tests.services.gradient_worker import settings_of
from tests.training_rows import ROWS, plain_gradient

SHAPE = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD_SIZE = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PLAIN = {
    "llama": LlamaConfig(**SHAPE),
    "mistral with a window": MistralConfig(**SHAPE, sliding_window=4),
    "phi3": Phi3Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, **HEAD_SIZE),
    "qwen3 with experts": Qwen3MoeConfig(
        **SHAPE, **HEAD_SIZE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "smollm3": SmolLM3Config(**SHAPE),
    "gemma": GemmaConfig(**SHAPE, **HEAD_SIZE),
    "granite without scaling": GraniteConfig(**SHAPE),
}
OTHER_HEADS = {
    "granite": GraniteConfig(**SHAPE, logits_scaling=8.0),
    "gemma2": Gemma2Config(**SHAPE, **HEAD_SIZE, final_logit_softcapping=1.0, attn_logit_softcapping=None),
    "cohere": CohereConfig(**SHAPE, logit_scale=0.0625),
    "phi": PhiConfig(**SHAPE),
}
LEAKING = {
    "lfm2": Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
    "mamba": MambaConfig(vocab_size=400, hidden_size=64, num_hidden_layers=2, pad_token_id=0),
}


def lively_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Save a random model whose tokens have very unlike likelihoods, as those of a trained one have."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(config), dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0) if weight.ndim > 1 else weight.add_(0.5 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("config", PLAIN.values(), ids=PLAIN)
def test_a_plain_decoder_has_the_loss_of_its_own_logits(
    tmp_path: Path, config: PreTrainedConfig, packing: bool
) -> None:
    folder = lively_model(config, tmp_path)
    loss = ReplicaEngine(folder, settings_of(packing, 4096)).gradients(ROWS).loss
    assert loss == pytest.approx(plain_gradient(folder, ROWS)[0], abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("config", OTHER_HEADS.values(), ids=OTHER_HEADS)
def test_a_head_that_is_more_than_its_weight_is_refused(
    tmp_path: Path, config: PreTrainedConfig, packing: bool, dtype: str
) -> None:
    settings = settings_of(packing, 4096).model_copy(update={"compute_dtype": dtype})
    said = (
        rf"model\.source: {config.model_type} computes its logits in a way .* differ by \d+\.\d%\); use another model"
    )
    with pytest.raises(UserError, match=said):
        ReplicaEngine(lively_model(config, tmp_path), settings)


@pytest.mark.parametrize("config", LEAKING.values(), ids=LEAKING)
def test_layers_that_read_over_packed_rows_are_refused_with_packing_and_right_without(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    folder = lively_model(config, tmp_path)
    said = rf"rows of {config.model_type} see each other in one packed pass .* set inject\.packing and align\.packing"
    with pytest.raises(UserError, match=said):
        ReplicaEngine(folder, settings_of(True, 4096))
    loss = ReplicaEngine(folder, settings_of(False, 4096)).gradients(ROWS).loss
    assert loss == pytest.approx(plain_gradient(folder, ROWS)[0], rel=1e-4)


@pytest.mark.parametrize(
    "engine", ["ddp", pytest.param("zero2", marks=pytest.mark.slow), pytest.param("zero3", marks=pytest.mark.slow)]
)
def test_every_engine_refuses_before_the_first_step(tiny_model_folder: Path, tmp_path: Path, engine: str) -> None:
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed")
    folder = lively_model(OTHER_HEADS["granite"], tmp_path / "model")
    load_tokenizer(tiny_model_folder).save_pretrained(folder)
    platform = PlatformSection.model_validate({"training_engine": engine, "processes": 2})
    with pytest.raises(UserError, match=r"model\.source: granite computes its logits"):
        train(folder, ROWS, settings_of(True, 4096), 5, tmp_path / "out", lambda *_: None, platform)
    assert not (tmp_path / "out" / "steps.jsonl").exists()


@pytest.mark.parametrize("config", (OTHER_HEADS | LEAKING).values(), ids=OTHER_HEADS | LEAKING)
def test_replies_of_such_a_model_are_its_own_or_refused(
    tiny_model_folder: Path, tmp_path: Path, config: PreTrainedConfig
) -> None:
    folder = lively_model(config, tmp_path)
    tokenizer = load_tokenizer(tiny_model_folder)
    tokenizer.save_pretrained(folder)
    items = [EvalItem(f"q{n}", "domain", "Which lamp burns? " + "Lind" * n, 8, {}) for n in range(4)]
    if config in LEAKING.values():
        with pytest.raises(UserError, match=rf"{config.model_type} has layers of kind \w+, which the engine cannot"):
            list(Engine(folder, dtype="float32").generate(items))
        return
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    texts = {reply.item_id: reply.text for reply in Engine(folder, dtype="float32").generate(items)}
    for item in items:
        chat = [{"role": "user", "content": item.prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, do_sample=False, max_new_tokens=item.max_new_tokens)
        new = made[0, ids["input_ids"].shape[1] :]
        assert texts[item.id] == tokenizer.decode(new, skip_special_tokens=True).strip()
