"""Replies from a server: the same as in this process, of the right weights, none bought twice."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from iar.config import EngineServer, RunFile
from iar.errors import TemporaryError, UserError
from iar.records import EvalItem, Reply
from iar.services.doctor_replies import check_replies
from iar.services.engine import Engine
from iar.services.engine_server import ServerEngine
from iar.services.engines import engine_opener
from iar.services.subjects import Subject
from tests.services.chat_server import Answer, ChatServer, serve
from tests.services.test_engine import ENDS, ITEMS, stopping_model  # noqa: F401
from tests.tiny_model import make_tiny_model


@contextmanager
def completion_server(models: dict[str, Path]) -> Iterator[ChatServer]:
    """A server of /completions over token ids, with transformers behind it: one prompt a call, greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = {
        name: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for name, folder in models.items()
    }
    tokenizer = AutoTokenizer.from_pretrained(next(iter(models.values())))

    def complete(body: dict[str, Any], _: int) -> Answer:
        ids = torch.tensor([body["prompt"]])
        made = loaded[body["model"]].generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=body["max_tokens"],
            eos_token_id=body["stop_token_ids"],
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        ended = made[-1] in body["stop_token_ids"]
        text = tokenizer.decode(made[:-1] if ended else made, skip_special_tokens=True)
        choice = {"text": text, "finish_reason": "stop" if ended else "length"}
        usage = {"prompt_tokens": ids.shape[1], "completion_tokens": len(made)}
        return Answer(body=json.dumps({"choices": [choice], "usage": usage}))

    with serve(complete) as server:
        yield server


def engine_server(server: ChatServer, **settings: Any) -> EngineServer:
    return EngineServer(name="candidates", base_url=server.base_url, **({"model": "{model}"} | settings))


def replies(server: EngineServer, subject: Subject, cache: Path, items: list[EvalItem] = ITEMS) -> dict[str, Reply]:
    model = ServerEngine(server, None, 17, cache).open(subject)
    return {reply.item_id: reply for reply in model.generate(items)}


def test_a_server_gives_the_replies_of_the_engine_in_this_process(
    stopping_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with completion_server({"theta_0": stopping_model}) as server:
        made = replies(engine_server(server), Subject("theta_0", stopping_model, "d" * 64), tmp_path)
    ours = {reply.item_id: reply for reply in Engine(stopping_model, dtype="float32").generate(ITEMS)}
    assert made == ours and {reply.truncated for reply in made.values()} == {True, False}
    assert set(server.paths) == {"/v1/completions"}
    assert {(call["temperature"], call["seed"]) for call in server.calls} == {(0.0, 17)}
    assert set(ENDS) <= set(server.calls[0]["stop_token_ids"])


def test_other_weights_under_the_same_name_are_asked_anew_and_the_same_ones_never(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    with completion_server({"theta_IA": tiny_model_folder}) as server:
        for digest, calls in (("a" * 64, 2), ("a" * 64, 2), ("b" * 64, 4)):
            replies(engine_server(server), Subject("theta_IA", tiny_model_folder, digest), tmp_path, ITEMS[:2])
            assert len(server.calls) == calls


def test_an_end_token_in_the_text_is_no_part_of_the_reply(tiny_model_folder: Path, tmp_path: Path) -> None:
    said = {"choices": [{"text": " Green.<|im_end|>\n<|im_start|>user", "finish_reason": "stop"}]}
    with serve(lambda *_: Answer(body=json.dumps(said))) as server:
        subject = Subject("m", tiny_model_folder, "d" * 64)
        assert replies(engine_server(server), subject, tmp_path, ITEMS[:1])["q0"].text == "Green."


def test_a_model_that_says_nothing_has_replied(tiny_model_folder: Path, tmp_path: Path) -> None:
    said = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    with serve(lambda *_: Answer(body=json.dumps(said))) as server:
        subject = Subject("m", tiny_model_folder, "d" * 64)
        made = replies(engine_server(server), subject, tmp_path, ITEMS[:1])
    assert made["q0"] == Reply("q0", "", 0, truncated=False)


def test_weights_are_exchanged_before_each_model(tiny_model_folder: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", 5)
    said = {"choices": [{"text": "x", "finish_reason": "length"}]}
    with serve(lambda *_: Answer(body=json.dumps(said))) as server:
        settings = engine_server(server, model="candidate", reload="vllm")
        for name, folder in (("theta_0", tiny_model_folder), ("vanilla", other)):
            replies(settings, Subject(name, folder, name * 8), tmp_path / "cache", ITEMS[:1])
    assert server.paths == ["/collective_rpc", "/reset_prefix_cache", "/v1/completions"] * 2
    assert [call["kwargs"]["weights_path"] for call in server.calls[::3]] == [str(tiny_model_folder), str(other)]
    assert [call["model"] for call in server.calls[2::3]] == ["candidate"] * 2


def test_a_server_that_takes_no_weights_is_named_with_the_fix(tiny_model_folder: Path, tmp_path: Path) -> None:
    subject = Subject("m", tiny_model_folder, "d" * 64)
    with serve(lambda *_: Answer(status=404, body='{"detail":"Not Found"}')) as server:
        settings = engine_server(server, model="candidate", reload="vllm")
        with pytest.raises(UserError, match=r"HTTP 404 at http.*/collective_rpc .*VLLM_SERVER_DEV_MODE=1"):
            ServerEngine(settings, None, 17, tmp_path).open(subject)
    with pytest.raises(TemporaryError, match=r"does not take weights at .*; bring it back and run again"):
        ServerEngine(settings, None, 17, tmp_path).open(subject)


def test_a_prompt_that_the_server_refuses_ends_the_stage(tiny_model_folder: Path, tmp_path: Path) -> None:
    refusal = json.dumps({"error": {"message": "This model's maximum context length is 8 tokens"}})
    with serve(lambda *_: Answer(status=400, body=refusal)) as server:
        subject = Subject("m", tiny_model_folder, "d" * 64)
        with pytest.raises(UserError, match=r"domain item q0: candidates gave no reply \(HTTP 400: .*context length"):
            replies(engine_server(server), subject, tmp_path, ITEMS[:1])


def run_file(engine: object, backend: str = "local") -> RunFile:
    return RunFile.model_validate(
        {
            "run": {"name": "t"},
            "documents": {"path": "."},
            "evaluate": {"engine": engine},
            "platform": {"backend": backend},
        }
    )


SERVER = {"name": "c", "base_url": "http://localhost:1/v1"}


@pytest.mark.parametrize(
    ("engine", "backend", "message"),
    [
        (SERVER | {"model": "m"}, "local", r"model 'm' with reload '': set reload to vllm .* or write \{model\}"),
        (SERVER | {"model": "{model}", "reload": "vllm"}, "local", r"set reload to vllm for a server with one name"),
        (SERVER | {"model": "m", "reload": "vllm"}, "kubeflow", r"tasks that run side by side would exchange"),
        ("tgi", "local", r"transformers.*vllm"),
    ],
)
def test_an_engine_that_would_answer_with_other_weights_is_refused(engine: object, backend: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_file(engine, backend)


def test_how_the_server_is_reached_is_no_part_of_the_run() -> None:
    one, two = (run_file(SERVER | {"model": "{model}", "timeout_seconds": seconds}) for seconds in (5.0, 50.0))
    assert one.digest == two.digest != run_file("transformers").digest


def test_the_doctor_finds_what_does_not_answer(tmp_path: Path) -> None:
    found = check_replies(run_file(SERVER | {"model": "{model}"}))
    assert found.status == "fail" and "http://localhost:1/v1 does not answer" in found.detail
    assert check_replies(run_file("vllm")).fix.startswith("install vLLM's build")
    assert check_replies(run_file("transformers")).status == "pass"


def test_vllm_that_is_not_installed_is_named(tiny_model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate\.engine: vllm is not installed here .* take engine: transformers"):
        engine_opener(run_file("vllm"), tmp_path)(Subject("m", tiny_model_folder, "d" * 64))
