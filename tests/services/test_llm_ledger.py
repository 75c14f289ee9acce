"""Budgets of processes that share a reply cache: together they never pass a ceiling, and a dead one holds nothing."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iar.config import Endpoint
from iar.services.llm import ChatClient
from tests.services.chat_server import Answer, completion, serve
from tests.services.test_llm_limits import rows

BUY = """
import sys, json
from pathlib import Path
from iar.config import Endpoint
from iar.errors import UserError
from iar.services.llm import ChatClient, ChatRequest
endpoint, folder, name = Endpoint.model_validate_json(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
try:
    ChatClient(endpoint, folder).complete([ChatRequest("s", f"{name} {number}", None) for number in range(20)])
except UserError as error:
    sys.exit(str(error))
"""


def buyer(endpoint: Endpoint, folder: Path, name: str) -> "subprocess.Popen[str]":
    arguments = [endpoint.model_dump_json(), str(folder), name]
    return subprocess.Popen([sys.executable, "-c", BUY, *arguments], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("ceiling", "most_calls"), [({"budget_calls": 10}, 10), ({"budget_tokens": 5000}, 15)])
def test_processes_together_stay_below_a_ceiling(tmp_path: Path, ceiling: dict, most_calls: int) -> None:
    body = completion("x", 300, 16)
    with serve(lambda *_: Answer(body=body, delay_seconds=0.05)) as server:
        endpoint = server.endpoint(concurrency=4, max_tokens=16, **ceiling)
        buyers = [buyer(endpoint, tmp_path, name) for name in ("one", "two", "three")]
        said = [one.communicate(timeout=100)[1] for one in buyers]
    spent = ChatClient(endpoint, tmp_path).spent()
    assert all(f"{next(iter(ceiling))} {next(iter(ceiling.values()))} is reached" in one for one in said)
    assert len(server.calls) == spent.calls <= most_calls
    assert spent.tokens <= 5000
    # What is left is less than the dearest call could take, so nothing was held back for longer than needed.
    assert spent.calls == 10 if "budget_calls" in ceiling else spent.tokens > 5000 - 500
    assert not any(path.is_file() and path.name != "lock" for path in (tmp_path / "under-way").rglob("*"))


def test_what_a_killed_process_had_set_aside_is_free_again(tmp_path: Path) -> None:
    with serve(lambda _, number: Answer("x", delay_seconds=60 if number == 1 else 0)) as server:
        endpoint = server.endpoint(concurrency=1, budget_calls=3)
        killed = buyer(endpoint, tmp_path, "killed")
        deadline = time.monotonic() + 60
        while not server.calls and time.monotonic() < deadline:
            time.sleep(0.02)
        (page,) = (path for path in (tmp_path / "under-way").rglob("*-*"))
        assert json.loads(page.read_text())[0] >= 1
        killed.kill()
        killed.communicate()
        replies = ChatClient(endpoint, tmp_path).complete(rows(3))
        assert [reply.text for reply in replies] == ["x"] * 3
        assert not page.exists()
