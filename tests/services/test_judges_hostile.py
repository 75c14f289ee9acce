"""The judge panel before a hostile server, killed again and again: no vote is lost, and none bought twice."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from iar.methods.digest import canonical_json
from iar.services.judges import ArchivedVote, read_votes
from iar.services.llm import ChatClient
from iar.services.reply_cache import FILE_NAME, Spent
from tests.services.chat_server import ChatServer, serve
from tests.services.hostile_server import WRAPPINGS, Hostile
from tests.services.test_llm_hostile import ROOT, stored

ITEMS, KILLS, CONCURRENCY = 120, 20, 4
JUDGES = ("judge-a", "judge-b", "judge-c")
# Without the verdict that is cut off: it is asked for again twice in the same words, which looks like a second sale.
WHOLE = tuple(WRAPPINGS)[:-1]
PANEL = """
import sys
from pathlib import Path
from iar.config import Endpoint
from iar.records import EvalItem, Reply
from iar.services import llm_calls
from iar.services.judges import vote, write_votes
from iar.services.llm_judge import LlmJudge

_, url, archive, cache, items, concurrency, *names = sys.argv
llm_calls.Patience.__init__.__defaults__ = (0.005, 0.05, 30.0, 30.0)
limits = {"timeout_seconds": 2.0, "max_attempts": 8, "concurrency": int(concurrency)}
judges = [LlmJudge(Endpoint(name=name, model=name, base_url=url, **limits), Path(cache)) for name in names]
numbers = range(int(items))
asked = [EvalItem(f"q{n}", "domain", f"Who keeps lamp {n}?", 8, {"reference": f"Keeper {n}"}) for n in numbers]
replies = {item.id: Reply(item.id, f"Keeper {n % 7} keeps it.", 4, False) for n, item in enumerate(asked)}
write_votes(Path(archive), vote("m", asked, replies, judges).votes)
"""


def scripted_judge(body: dict) -> str:
    """A verdict that hangs on judge and prompt alone; two judges agree on two replies of three."""
    score = random.Random(canonical_json(body)).choice([0, 1, 1, 1])
    return json.dumps({"reason": "It says so.", "score": score})


def start(server: ChatServer, archive: Path, state: Path) -> "subprocess.Popen[bytes]":
    arguments = [server.base_url, str(archive), str(state / "llm-cache"), str(ITEMS), str(CONCURRENCY), *JUDGES]
    with archive.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-c", PANEL, *arguments], cwd=ROOT, stderr=log)


def finish(panel: "subprocess.Popen[bytes]", archive: Path) -> None:
    assert panel.wait(300) == 0, archive.with_suffix(".log").read_text()[-2000:]


def spent(server: ChatServer, state: Path) -> Spent:
    """Return what all judges cost by their archive."""
    endpoints = [server.endpoint().model_copy(update={"model": name}) for name in JUDGES]
    return sum((ChatClient(endpoint, state / "llm-cache").spent() for endpoint in endpoints), Spent())


def untimed(archive: Path) -> list[ArchivedVote]:
    """Return the votes without the time that each of them took."""
    return [replace(one, vote=replace(one.vote, seconds=0.0)) for one in read_votes(archive)]


@pytest.mark.slow
def test_a_panel_killed_twenty_times_before_a_hostile_server_ends_with_the_same_votes(tmp_path: Path) -> None:
    hostile = Hostile(scripted_judge, slow_faults=0, wrappings=WHOLE)
    with serve(hostile) as server:
        finish(start(server, whole := tmp_path / "whole.parquet", tmp_path / "whole"), whole)
        total = len(server.calls)
        assert spent(server, tmp_path / "whole").calls == hostile.billed_calls
    assert set(hostile.delivered.values()) == {1}

    hostile = Hostile(scripted_judge, slow_faults=2, wrappings=WHOLE)
    dice = random.Random(17)
    state, archive = tmp_path / "state", tmp_path / "votes.parquet"
    with serve(hostile) as server:
        for _ in range(KILLS):
            before, kept = len(server.calls), stored(state)
            panel = start(server, archive, state)
            after = before + dice.randrange(1, total // KILLS)
            while len(server.calls) < after and panel.poll() is None:
                time.sleep(0.005)
            time.sleep(dice.random() * 0.02)
            panel.send_signal(signal.SIGKILL)
            assert panel.wait() == -signal.SIGKILL, archive.with_suffix(".log").read_text()[-2000:]
            assert not archive.exists()
            assert not kept & {canonical_json(call) for call in server.calls[before:]}
        before, kept = len(server.calls), stored(state)
        finish(start(server, archive, state), archive)
        assert kept and not kept & {canonical_json(call) for call in server.calls[before:]}
        cost = spent(server, state)

    votes = read_votes(archive)
    assert {one.vote.judge for one in votes} == set(JUDGES) and len({one.vote.item_id for one in votes}) == ITEMS
    assert untimed(archive) == untimed(whole)
    # What was under way to the server or to the disk at a kill is all that may be sold again, and all that is not
    # in the books; every reply that counts is there once, with the server's own count.
    under_way = KILLS * 2 * CONCURRENCY
    assert sum(count - 1 for count in hostile.delivered.values()) <= under_way
    assert 0 <= hostile.billed_calls - cost.calls <= under_way
    with sqlite3.connect(state / "llm-cache" / FILE_NAME) as database:
        rows = database.execute(
            "SELECT request, raw, prompt_tokens, completion_tokens FROM calls WHERE usable"
        ).fetchall()
        total_spent = database.execute(
            "SELECT SUM(calls), SUM(prompt_tokens), SUM(completion_tokens) FROM spent"
        ).fetchone()
    assert sorted(row[0] for row in rows) == sorted(hostile.delivered)
    said = [json.loads(raw)["usage"] for _, raw, *_ in rows]
    assert [(one["prompt_tokens"], one["completion_tokens"]) for one in said] == [row[2:] for row in rows]
    assert total_spent == (cost.calls, cost.prompt_tokens, cost.completion_tokens)
