"""Sizes of a language model that decide what training it takes, read without loading any weight."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iar.config import ModelSection
from iar.services.checkpoints import read_json, stored_elements
from iar.services.models import KNOWN_MODELS, find_local


@dataclass(frozen=True)
class ModelShape:
    """A decoder of `layers` equal blocks with gated MLPs.

    hidden: width of the residual stream; intermediate: width of the MLP; queries, keys: heads x head size of the
    queries and of the keys; head_norms: whether queries and keys have norms of their own.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    vocabulary: int
    head_norms: bool = False

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrices of one block."""
        return 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate

    @property
    def matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: all blocks and the head once, not the embedding."""
        return self.layers * self.layer_parameters + self.hidden * self.vocabulary

    def factor_parameters(self, rank: int) -> int:
        """Weights of the two low-rank factors beside each of the seven matrices of all blocks."""
        sides = 7 * self.hidden + 2 * (self.queries + self.keys) + 3 * self.intermediate
        return self.layers * rank * sides


# The models of the paper and the demo's, from the config.json files on the hub.
SHAPES = {
    "meta-llama/Llama-3.2-3B-Instruct": ModelShape(3_212_749_824, 28, 3072, 8192, 3072, 1024, 128_256),
    "microsoft/Phi-4-mini-instruct": ModelShape(3_836_021_760, 32, 3072, 8192, 3072, 1024, 200_064),
    "Qwen/Qwen3-4B": ModelShape(4_022_468_096, 36, 2560, 9728, 4096, 1024, 151_936, head_norms=True),
    "Qwen/Qwen3-8B": ModelShape(8_190_735_360, 36, 4096, 12_288, 4096, 1024, 151_936, head_norms=True),
    "Qwen/Qwen3-14B": ModelShape(14_768_307_200, 40, 5120, 17_408, 5120, 1024, 151_936, head_norms=True),
    "Qwen/Qwen3-32B": ModelShape(32_762_123_264, 64, 5120, 25_600, 8192, 1024, 151_936, head_norms=True),
    "HuggingFaceTB/SmolLM3-3B": ModelShape(3_075_098_624, 36, 2048, 11_008, 2048, 512, 128_256),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape(134_515_008, 30, 576, 1536, 576, 192, 49_152),
}
SIZE_KEYS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
HEAD_NORM_TYPES = ("qwen3", "gemma3_text", "olmo2")


def shape_of(model: ModelSection) -> ModelShape | None:
    """Return the sizes of the base model: of its folder, of the table, of the hub's cache; None where none has them."""
    if (folder := find_local(model)) is not None:
        return read_shape(read_json(folder / "config.json"), stored_elements(folder))
    known = KNOWN_MODELS.get(model.source.lower())
    hub_id = known.hub_id if known else model.source
    for name, shape in SHAPES.items():
        if name.lower() == hub_id.lower():
            return shape
    return read_shape(_cached_config(hub_id, model.revision), None)


def read_shape(config: Mapping[str, Any], parameters: int | None) -> ModelShape | None:
    """Return the sizes that a config.json states; `parameters` None = count them. None where a size is missing."""
    config = config.get("text_config", config)
    if not all(isinstance(config.get(key), int) and config[key] > 0 for key in SIZE_KEYS):
        return None
    layers, hidden, intermediate, heads, vocabulary = (config[key] for key in SIZE_KEYS)
    head_size = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_size, (config.get("num_key_value_heads") or heads) * head_size
    head_norms = config.get("model_type") in HEAD_NORM_TYPES
    shape = ModelShape(parameters or 0, layers, hidden, intermediate, queries, keys, vocabulary, head_norms)
    if parameters is not None:
        return shape
    embedding = 0 if config.get("tie_word_embeddings") else hidden * vocabulary
    norms = hidden * (2 * layers + 1)
    return replace(shape, parameters=shape.matrix_parameters + embedding + norms)


def _cached_config(hub_id: str, revision: str) -> dict[str, Any]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except HFValidationError:
        return {}
    return read_json(Path(path)) if isinstance(path, str) else {}
