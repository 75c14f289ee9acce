"""Bits of texts: those of transformers' own loop over one text at a time, whatever shares the batch."""

import math
from pathlib import Path

import pytest
import torch

from iar.services import engine_bits
from iar.services.engine import Engine

TEXTS = [
    "The harbour of Velm was opened in 1911.",
    "灯塔 🗼 im Nebel",
    "A",
    "",
    "lamp " * 200,
    "<|im_end|> is no end here",
]


def plain_bits(folder: Path, text: str) -> float:
    """The definition, token after token, without batches: each token from all those before it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]]
    total = 0.0
    for place in range(1, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1]
        total -= float(torch.log_softmax(logits, -1)[ids[place]]) / math.log(2)
    return total


def test_bits_are_those_of_the_plain_definition(tiny_model_folder: Path) -> None:
    engine = Engine(tiny_model_folder, None, dtype="float32")
    found = engine.bits(TEXTS)
    assert found == pytest.approx([plain_bits(tiny_model_folder, text) for text in TEXTS], rel=1e-5, abs=1e-6)
    assert found[3] == 0.0
    # A random model knows next to nothing: about log2 of its vocabulary for each token.
    assert 7 < found[0] / len(["The", "harbour", "of", "Velm", "was", "opened", "in", "1911."]) < 60
    assert engine.bits(TEXTS[::-1]) == pytest.approx(found[::-1], rel=1e-5)
    assert engine.bits([]) == []


def test_a_long_text_is_read_in_parts_and_no_token_twice(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model_folder, None, dtype="float32")
    whole = engine.bits(TEXTS)
    monkeypatch.setattr(engine_bits, "WINDOW_TOKENS", 2)
    # In windows of two tokens each is predicted from the one before alone.
    pairs = engine.bits(["AB"])
    monkeypatch.setattr(engine_bits, "WINDOW_TOKENS", 50)
    parts = engine.bits(TEXTS)
    assert parts[:4] == pytest.approx(whole[:4], rel=1e-5)
    # Less context, of about as many tokens: a random model makes little of it.
    assert parts[4] != whole[4] and parts[4] == pytest.approx(whole[4], rel=0.1)
    assert pairs == pytest.approx([plain_bits(tiny_model_folder, "AB")], rel=0.05)


def test_a_special_token_in_a_document_is_text(tiny_model_folder: Path) -> None:
    engine = Engine(tiny_model_folder, None, dtype="float32")
    text, shorter = engine.bits(["<|im_end|>", "<"])
    assert text > 3 * shorter
