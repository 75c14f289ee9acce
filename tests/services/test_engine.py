"""Generation: the same replies as the plain loop of transformers, whatever shares the batch."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from iar.errors import UserError
from iar.methods.objectives import example
from iar.records import EvalItem, Reply
from iar.services.engine import Engine
from iar.services.engine_cache import BLOCK, BlockLayer, grouped_attention
from iar.services.rows import tokenise
from tests.chat_families import of_family

QUESTIONS = ["Which lamp burns?", "A", "Write two short sentences about the harbour, in plain words.", "1911 or 1912?"]
ITEMS = [
    EvalItem(f"q{n}", "domain", QUESTIONS[n % 4] + " " * 2 * n + "Lind" * n, (6, 24, 13)[n % 3], {}) for n in range(9)
]


ENDS = tuple(range(2, 400, 8))


@pytest.fixture(scope="module")
def stopping_model(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model made lively, with an eighth of its vocabulary as end tokens: replies end at different lengths."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("stopping") / "model"
    shutil.copytree(tiny_model_folder, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            # A random model with weights this small would only repeat its last token.
            parameter.mul_(10 if parameter.dim() > 1 else 1)
    model.generation_config.eos_token_id = list(ENDS)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain_loop(stopping_model: Path) -> Callable[[EvalItem, str | None], tuple[list[int], str]]:
    """Return the new tokens and the text, by transformers' own loop, one prompt at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(stopping_model)
    model = AutoModelForCausalLM.from_pretrained(stopping_model, dtype=torch.float32, attn_implementation="eager")

    def generate(item: EvalItem, system_turn: str | None) -> tuple[list[int], str]:
        messages = [{"role": "system", "content": system_turn}] if system_turn else []
        messages.append({"role": "user", "content": item.prompt})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, do_sample=False, max_new_tokens=item.max_new_tokens)
        new = made[0, ids["input_ids"].shape[1] :].tolist()
        return new, tokenizer.decode([token for token in new if token not in ENDS], skip_special_tokens=True).strip()

    return generate


def replies(engine: Engine, items: list[EvalItem] = ITEMS) -> dict[str, Reply]:
    return {reply.item_id: reply for reply in engine.generate(items)}


@pytest.mark.parametrize(("batch_size", "system_turn"), [(1, None), (3, None), (64, "Answer in plain words.")])
def test_replies_equal_those_of_the_plain_loop(
    stopping_model: Path,
    plain_loop: Callable[[EvalItem, str | None], tuple[list[int], str]],
    batch_size: int,
    system_turn: str | None,
) -> None:
    made = replies(Engine(stopping_model, system_turn, batch_size, dtype="float32"))
    assert set(made) == {item.id for item in ITEMS}
    for item in ITEMS:
        tokens, text = plain_loop(item, system_turn)
        ended = tokens[-1] in ENDS
        assert made[item.id] == Reply(item.id, text, len(tokens) - ended, truncated=not ended)
    assert {reply.truncated for reply in made.values()} == {True, False}


def test_the_same_items_give_the_same_replies_in_the_same_order(stopping_model: Path) -> None:
    engine = Engine(stopping_model, None, 4)
    assert list(engine.generate(ITEMS)) == list(engine.generate(ITEMS))


def test_a_limit_reached_is_flagged_and_no_limit_is_exceeded(tiny_model_folder: Path) -> None:
    for reply in Engine(tiny_model_folder, None, 4).generate(ITEMS[:5]):
        limit = next(item.max_new_tokens for item in ITEMS if item.id == reply.item_id)
        assert reply.tokens == limit if reply.truncated else reply.tokens < limit


def test_progress_counts_every_reply(stopping_model: Path) -> None:
    seen: list[tuple[int, int]] = []
    list(Engine(stopping_model, None, 3).generate(ITEMS[:5], lambda done, total: seen.append((done, total))))
    assert seen == [(n, 5) for n in range(1, 6)]


def test_a_reply_ends_with_the_token_that_ends_a_trained_target(tiny_model_folder: Path, tmp_path: Path) -> None:
    from transformers import PhiConfig, PhiForCausalLM

    tokenizer = of_family(tiny_model_folder, "phi-4-mini")
    rows, _ = tokenise([example("qa", "a", "Which lamp?", "A green one.")], tokenizer, None, 64)
    end_id = rows[0].token_ids[-1]
    assert tokenizer.convert_ids_to_tokens(end_id) == "<|end|>"
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = PhiForCausalLM(PhiConfig(vocab_size=len(tokenizer), **shape, eos_token_id=tokenizer.eos_token_id))
    with torch.no_grad():  # whatever it reads, it says this token
        model.lm_head.weight.zero_()
        model.lm_head.bias[end_id] = 1.0
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert replies(Engine(tmp_path), ITEMS[:1])["q0"] == Reply("q0", "", 0, truncated=False)


def test_nothing_to_ask_is_nothing_to_answer(tiny_model_folder: Path) -> None:
    assert list(Engine(tiny_model_folder).generate([])) == []


def test_a_prompt_without_room_for_the_reply_is_refused(tiny_model_folder: Path) -> None:
    long = EvalItem("long", "mmlu", "tower " * 300, 400, {})
    with pytest.raises(UserError, match=r"mmlu item long: a prompt of \d+ tokens and a reply of 400 exceed .* 512 .*"):
        list(Engine(tiny_model_folder).generate([long]))


def test_gradients_stay_possible_while_replies_are_read(tiny_model_folder: Path) -> None:
    # A generator that yields inside inference_mode would leave its caller in that mode.
    for _ in Engine(tiny_model_folder, None, 2).generate(ITEMS[:2]):
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("new", [1, 5])
def test_grouped_attention_equals_attention_over_repeated_keys(new: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, new, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    mask = torch.zeros(2, 1, new, 9).masked_fill(torch.rand(2, 1, new, 9) < 0.3, torch.finfo(torch.float32).min)
    ours, _ = grouped_attention(None, query, key, value, mask, scaling=0.25)
    keys, values = (states.repeat_interleave(3, dim=1) for states in (key, value))
    weights = torch.softmax(query @ keys.transpose(2, 3) * 0.25 + mask, dim=-1)
    torch.testing.assert_close(ours, (weights @ values).transpose(1, 2))


def test_a_cache_grows_in_blocks_and_keeps_its_columns() -> None:
    layer, columns = BlockLayer(), torch.randn(2, 3, 2 * BLOCK + 5, 4)
    for start, end in ((0, 7), (7, 8), (8, BLOCK), (BLOCK, BLOCK + 1), (BLOCK + 1, 2 * BLOCK + 5)):
        keys, _ = layer.update(columns[:, :, start:end], columns[:, :, start:end])
        assert keys.shape[2] % BLOCK == 0 and layer.get_seq_length() == end
        assert torch.equal(keys[:, :, :end], columns[:, :, :end])
        assert not keys[:, :, end:].any()
