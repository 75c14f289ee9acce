"""Rows packed into one flat sequence see what they see alone, whatever they share and however far a layer looks."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.services.packing import pack_rows, packed_attention, pad_rows, register_attention, varlen_attention
from iar.services.train_engines import batch_loss, make_batch

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    # Deeper, so that what the shared tokens do not see reaches the states behind them.
    "window of 4": MistralConfig(**SHAPE | {"num_hidden_layers": 4}, sliding_window=4),
}


def token_rows(shared: int) -> list[TokenRow]:
    """Four rows of unlike lengths whose prompts begin with the same `shared` tokens."""
    lengths = [(9, 4), (12, 9), (30, 6), (7, 5)]
    prefix = tuple(range(1, shared + 1))
    return [
        TokenRow(str(n), "qa", prefix + tuple((7 * n + 3 * place) % 40 + 5 for place in range(length)), shared + prompt)
        for n, (length, prompt) in enumerate(lengths)
    ]


@pytest.mark.parametrize("multiple", [1, 16])
@pytest.mark.parametrize("shared", [0, 1, 11])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_packed_row_has_the_states_it_has_alone(config: PreTrainedConfig, shared: int, multiple: int) -> None:
    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager")
    packing = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation=register_attention())
    packing.load_state_dict(alone.state_dict())
    rows = token_rows(shared)
    packed = pack_rows(rows, len(rows), torch.device("cpu"), multiple)
    assert packed.packing.shared == shared
    assert (
        packed.positions % multiple
        == packed.packing.padded_BT.shape[1] % multiple
        == len(packed.states_P) % multiple
        == 0
    )
    real = packed.weights_P > 0

    with torch.no_grad():
        states = packing.get_decoder()(
            packed.ids_1N, position_ids=packed.position_ids_1N, packing=packed.packing, use_cache=False
        ).last_hidden_state[0, packed.states_P[real]]
        wanted = [
            alone.get_decoder()(torch.tensor([row.token_ids])).last_hidden_state[0, row.prompt_length - 1 : -1]
            for row in rows
        ]
    assert torch.allclose(states, torch.cat(wanted), atol=1e-5)


@pytest.mark.parametrize("shared", [0, 11])
@pytest.mark.parametrize("window", [None, 4, 262_144])
def test_keys_repeated_for_a_kernel_without_groups_change_no_number(
    monkeypatch: pytest.MonkeyPatch, shared: int, window: int | None
) -> None:
    """On a GPU a mask, or fp32, and groups of heads go together in no kernel that is small in memory."""
    torch.manual_seed(0)
    packed = pack_rows(token_rows(shared), 4, torch.device("cpu"))
    query = torch.randn(1, 4, packed.positions, 8)
    key, value = torch.randn(2, 1, 2, packed.positions, 8)
    wanted, _ = packed_attention(None, query, key, value, None, 0.3, packed.packing, sliding_window=window)

    calls = []
    torchs = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr("iar.services.packing.takes_groups", lambda *_: False)
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *states, **options: calls.append((states, options)) or torchs(*states, **options),
    )
    repeated, _ = packed_attention(None, query, key, value, None, 0.3, packed.packing, sliding_window=window)
    torch.testing.assert_close(repeated, wanted, rtol=1e-6, atol=1e-6)
    assert calls and not any(options["enable_gqa"] for _, options in calls)
    assert all(states[0].shape[1] == states[1].shape[1] == states[2].shape[1] == 4 for states, _ in calls)


@pytest.mark.parametrize("shared", [0, 11])
def test_a_window_that_no_row_fills_needs_no_mask(shared: int) -> None:
    longest = max(len(row.token_ids) for row in token_rows(shared))
    for multiple in (1, 16):
        places = pack_rows(token_rows(shared), 4, torch.device("cpu"), multiple).packing
        for window in (longest + multiple, 262_144):
            assert (places.mask(window) is None) == (shared == 0) and places.shared_mask(window) is None
            if shared:
                assert torch.equal(places.mask(window), places.mask(None))
        assert places.mask(longest - 1) is not None


@pytest.mark.parametrize("packing", [True, False])
def test_bfloat16_on_a_cpu_computes_few_lengths(packing: bool) -> None:
    """Each length is a kernel that oneDNN compiles and keeps, so memory would grow with the steps."""
    cpu, steps = torch.device("cpu"), [token_rows(shared) for shared in range(40)]
    lengths = {
        dtype: {make_batch(rows, 4, packing, cpu, dtype).positions for rows in steps}
        for dtype in (torch.bfloat16, torch.float32)
    }
    assert len(lengths[torch.float32]) == 40
    assert len(lengths[torch.bfloat16]) <= 5


@pytest.mark.parametrize("packing", [True, False])
def test_filler_changes_neither_the_loss_nor_its_gradient(packing: bool) -> None:
    torch.manual_seed(0)
    attention = register_attention() if packing else "sdpa"
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS["llama"]), attn_implementation=attention)
    found = []
    for multiple in (1, 16):
        batch = (pack_rows if packing else pad_rows)(token_rows(3), 4, torch.device("cpu"), multiple)
        model.zero_grad()
        loss, nll_P = batch_loss(model, batch)
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        found.append((loss.detach(), nll_P[batch.weights_P > 0], gradient))
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_padded_row_has_the_states_it_has_alone(config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager")
    padding = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="sdpa")
    padding.load_state_dict(alone.state_dict())
    rows = token_rows(1)
    padded = pad_rows(rows, len(rows), torch.device("cpu"))
    assert padded.ids_BT.shape == (4, 31) and padded.positions == 124

    with torch.no_grad():
        states = padding.get_decoder()(**padded.inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        wanted = [
            alone.get_decoder()(torch.tensor([row.token_ids])).last_hidden_state[0, row.prompt_length - 1 : -1]
            for row in rows
        ]
    assert torch.allclose(states[padded.states_P], torch.cat(wanted), atol=1e-5)


def plain_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    longest_query: int,
    longest_key: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
) -> torch.Tensor:
    """What flash_attn_varlen_func promises, row by row: causal order is aligned at the ends of queries and keys."""
    assert causal and query_ends.dtype == key_ends.dtype == torch.int32
    mixed = []
    spans = zip(query_ends, query_ends[1:], key_ends, key_ends[1:], strict=False)
    for first_query, last_query, first_key, last_key in spans:
        queries, keys = int(last_query - first_query), int(last_key - first_key)
        assert queries <= longest_query and keys <= longest_key
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if window_size[0] >= 0:
            seen = seen.triu(keys - queries - window_size[0])
        part = [
            states.transpose(0, 1)
            for states in (query[first_query:last_query], key[first_key:last_key], value[first_key:last_key])
        ]
        attended = torch.nn.functional.scaled_dot_product_attention(
            *part, attn_mask=seen, scale=softmax_scale, enable_gqa=True
        )
        mixed.append(attended.transpose(0, 1))
    return torch.cat(mixed)


@pytest.mark.parametrize("shared", [0, 1, 11])
@pytest.mark.parametrize("window", [None, 4])
def test_a_kernel_for_unlike_lengths_is_given_the_same_attention(shared: int, window: int | None) -> None:
    torch.manual_seed(0)
    packed = pack_rows(token_rows(shared), 4, torch.device("cpu"))
    query = torch.randn(1, 4, packed.positions, 8)
    key, value = torch.randn(2, 1, 2, packed.positions, 8)
    wanted, _ = packed_attention(None, query, key, value, None, 0.3, packed.packing, sliding_window=window)
    mixed = varlen_attention(plain_varlen, query, key, value, 0.3, packed.packing, window)
    assert torch.allclose(mixed, wanted, atol=1e-5)


def test_attention_that_torch_does_not_have_is_refused() -> None:
    packed = pack_rows(token_rows(0), 4, torch.device("cpu"))
    states = torch.zeros(1, 4, packed.ids_1N.shape[1], 8)
    with pytest.raises(UserError, match="caps its attention or has sinks"):
        packed_attention(None, states, states, states, None, 1.0, packed.packing, softcap=50.0)


def test_a_trained_checkpoint_does_not_name_the_packed_attention(tiny_model_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder, attn_implementation=register_attention())
    model.save_pretrained(tmp_path)
    assert "packed" not in (tmp_path / "config.json").read_text()
