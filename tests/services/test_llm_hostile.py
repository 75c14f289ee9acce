"""The chat client and the teacher before a server that does everything wrong: nothing lost, nothing bought twice."""

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iar.methods.digest import canonical_json
from iar.services.llm import ChatClient, ChatRequest, Patience
from iar.services.llm_ask import ask
from iar.services.llm_teacher_replies import ProposedQuestion, reader_of, schema_of
from iar.services.reply_cache import FILE_NAME, Spent
from tests.services.chat_server import ChatServer, serve, user_of
from tests.services.hostile_server import REFUSALS, SPOILT, WRAPPINGS, Hostile
from tests.services.test_llm_teacher import good_model

QUICK = Patience(first_backoff_seconds=0.005, longest_backoff_seconds=0.05, longest_stall_seconds=30.0)
ROOT = Path(__file__).parents[2]
# Far above what a good reply takes here, and short enough that a hang costs little.
SETTINGS = {"timeout_seconds": 2.0, "max_attempts": 8, "concurrency": 16}


def echo(body: dict) -> str:
    return json.dumps({"probability": 0.5, "question": user_of(body).partition("\n")[0]})


def test_a_hostile_server_loses_no_row_sells_none_twice_and_the_totals_are_right(tmp_path: Path) -> None:
    texts = [f"What is {number}?" for number in range(160)]
    requests = [ChatRequest("ask", text, schema_of(ProposedQuestion)) for text in texts]
    hostile = Hostile(echo, slow_faults=2, storm=range(60, 100))
    with serve(hostile) as server:
        client = ChatClient(server.endpoint(**SETTINGS), tmp_path, QUICK)
        asked = ask(client, requests, reader_of(ProposedQuestion))
        calls = len(server.calls)
        again = ask(client, requests, reader_of(ProposedQuestion))
    assert [one.value and one.value.question for one in asked] == texts
    assert again == asked and len(server.calls) == calls
    assert {*REFUSALS, *SPOILT, *WRAPPINGS, "storm", "unreadable"} == set(hostile.met)
    assert hostile.met["storm"] == 40
    assert set(hostile.delivered.values()) == {1}
    spent = client.spent()
    assert spent.calls == hostile.billed_calls
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        rows = database.execute("SELECT raw, prompt_tokens, completion_tokens FROM calls").fetchall()
    counted = [tokens for raw, *tokens in rows if '"completion_tokens"' in raw]
    assert [sum(part) for part in zip(*counted, strict=True)] == [hostile.prompt_tokens, hostile.completion_tokens]
    # What came back without a count, or not at all, may be billed: it is not taken to be free.
    assert len(counted) < len(rows) and all(prompt > 0 and completion > 0 for _, prompt, completion in rows)
    assert spent == Spent(len(rows), sum(row[1] for row in rows), sum(row[2] for row in rows))


def test_every_billed_reply_is_archived_with_what_was_asked(tmp_path: Path) -> None:
    hostile = Hostile(echo, slow_faults=1)
    with serve(hostile) as server:
        client = ChatClient(server.endpoint(**SETTINGS), tmp_path, QUICK)
        ask(client, [ChatRequest("ask", f"Who is {number}?") for number in range(40)], reader_of(ProposedQuestion))
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        rows = database.execute("SELECT request, raw, usable, base_url FROM calls").fetchall()
    assert len(rows) == hostile.billed_calls and {row[3] for row in rows} == {server.base_url}
    assert {row[0] for row in rows} == {canonical_json(call) for call in server.calls} & {row[0] for row in rows}
    assert {answer.body for answer in SPOILT.values() if answer.body} & {row[1] for row in rows}
    assert sorted(row[0] for row in rows if row[2]) == sorted(hostile.delivered)


def scripted_teacher(body: dict) -> str:
    """The model of the teacher's tests, which keeps its seven forms after a reminder too."""
    return good_model(body, 0).text


BUILD = """
import sys
from pathlib import Path
from iar.config import DocumentsSection, Endpoint, QaBuildSection, RunFile, RunSection
from iar.services import llm_calls
from iar.services.workspace import Context
from iar.stages import qa_build

_, url, documents, out, state = sys.argv
llm_calls.Patience.__init__.__defaults__ = (0.005, 0.05, 30.0, 30.0)
teacher = Endpoint(name="t", base_url=url, model="m-1", timeout_seconds=2.0, max_attempts=8, concurrency=4)
build = QaBuildSection(teacher=teacher, chunk_characters=300, validation_share=0.3, test_share=0.3)
run_file = RunFile(run=RunSection(name="demo"), documents=DocumentsSection(path=documents), qa_build=build)
Path(out).mkdir(parents=True)
qa_build.run(run_file, {}, Path(out), Context.for_tests(Path(state)))
"""


def start(server: ChatServer, documents: Path, out: Path, state: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", BUILD, server.base_url, str(documents), str(out), str(state)]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, stderr=log)


def finish(build: "subprocess.Popen[bytes]", out: Path) -> None:
    assert build.wait(300) == 0, out.with_suffix(".log").read_text()[-2000:]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def stored(state: Path) -> set[str]:
    """Return the requests whose replies a killed build had kept."""
    file = state / "llm-cache" / FILE_NAME
    if not file.is_file():
        return set()
    with sqlite3.connect(file) as database:
        return {row[0] for row in database.execute("SELECT request FROM calls WHERE usable")}


@pytest.mark.slow
def test_a_build_killed_twenty_times_before_a_hostile_server_ends_with_the_same_bytes(tmp_path: Path) -> None:
    (documents := tmp_path / "documents").mkdir()
    for path in sorted((ROOT / "examples" / "documents").iterdir())[:10]:
        shutil.copy(path, documents)
    with serve(Hostile(scripted_teacher, slow_faults=0)) as server:
        finish(start(server, documents, tmp_path / "whole", tmp_path / "whole-state"), tmp_path / "whole")
        total = len(server.calls)
    hostile = Hostile(scripted_teacher, slow_faults=2)
    dice = random.Random(17)
    state = tmp_path / "state"
    with serve(hostile) as server:
        for kill in range(20):
            before, kept = len(server.calls), stored(state)
            build = start(server, documents, out := tmp_path / f"killed-{kill}", state)
            after = before + dice.randrange(1, total // 20)
            while len(server.calls) < after and build.poll() is None:
                time.sleep(0.005)
            time.sleep(dice.random() * 0.05)
            build.send_signal(signal.SIGKILL)
            assert build.wait() == -signal.SIGKILL, out.with_suffix(".log").read_text()[-2000:]
            assert not kept & {canonical_json(call) for call in server.calls[before:]}
        before, kept = len(server.calls), stored(state)
        finish(start(server, documents, tmp_path / "out", state), tmp_path / "out")
        assert not kept & {canonical_json(call) for call in server.calls[before:]}
    assert len(contents(tmp_path / "out")) > 5 and contents(tmp_path / "out") == contents(tmp_path / "whole")
    # What was under way to the server or to the disk at a kill is all that may be sold again.
    assert sum(count - 1 for count in hostile.delivered.values()) <= 20 * 2 * 4
