"""A model's sizes are read from its config.json, and the table agrees with what transformers would build."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config

from iar.config import ModelSection
from iar.services.checkpoints import stored_elements
from iar.services.model_shapes import SHAPES, read_shape, shape_of

KINDS = {"meta-llama": LlamaConfig, "microsoft": LlamaConfig, "HuggingFaceTB": LlamaConfig, "Qwen": Qwen3Config}
UNTIED = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B")


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_table_counts_the_weights_that_transformers_makes(name: str) -> None:
    import torch

    shape = SHAPES[name]
    head = 64 if "SmolLM2" in name else 128
    config = KINDS[name.partition("/")[0]](
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.queries // head,
        num_key_value_heads=shape.keys // head,
        head_dim=head,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=name not in UNTIED,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == shape.parameters
    counted = read_shape(json.loads(config.to_json_string(use_diff=False)), shape.parameters)
    assert counted == shape


def test_a_folder_is_read_from_its_config_and_its_weights(tiny_model_folder: Path) -> None:
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    config = AutoConfig.from_pretrained(tiny_model_folder)
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.intermediate, shape.queries, shape.keys) == (2, 64, 128, 64, 32)
    assert shape.vocabulary == config.vocab_size
    assert shape.parameters == stored_elements(tiny_model_folder)


def test_weights_are_counted_where_only_the_config_is_here(tiny_model_folder: Path) -> None:
    config = json.loads((tiny_model_folder / "config.json").read_text())
    shape = read_shape(config, None)
    assert shape is not None
    assert shape.parameters == stored_elements(tiny_model_folder)


def test_known_names_find_the_table_in_any_case() -> None:
    assert shape_of(ModelSection(source="smollm2-135m-instruct")) == SHAPES["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert shape_of(ModelSection(source="qwen/qwen3-4b")) == SHAPES["Qwen/Qwen3-4B"]


@pytest.mark.parametrize("config", [{}, {"hidden_size": 64}, {"num_hidden_layers": 0}])
def test_a_config_without_the_sizes_gives_none(config: dict[str, int]) -> None:
    assert read_shape(config, 480) is None
