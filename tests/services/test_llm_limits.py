"""How much the chat client asks of whom: replicas, concurrency, budgets, structured output and the cache's key."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.errors import TemporaryError, UserError
from iar.services import llm_http, reply_cache
from iar.services.llm import ChatClient, ChatRequest, Patience
from iar.services.llm_ask import ask
from iar.services.llm_budget import dearest, money
from iar.services.llm_http import call_body
from iar.services.llm_teacher_replies import Certificate, reader_of, schema_of
from iar.services.reply_cache import FILE_NAME, Call, Spent, open_cache
from iar.services.throttle import Pool, Throttle
from tests.services.chat_server import Answer, completion, serve
from tests.services.test_llm import dead_endpoint

QUICK = Patience(first_backoff_seconds=0.005, longest_backoff_seconds=0.05, longest_stall_seconds=20.0)


def rows(count: int, schema: dict | None = None) -> list[ChatRequest]:
    return [ChatRequest("s", f"row {number:03d}", schema) for number in range(count)]


@given(st.integers(1, 64), st.lists(st.booleans(), max_size=200))
def test_a_limit_stays_between_one_and_the_most(most: int, replies: list[bool]) -> None:
    throttle = Throttle("u", most)
    for replied in replies:
        throttle.replied() if replied else throttle.overloaded(time.monotonic())
        assert 1 <= throttle.limit <= most


def test_a_burst_halves_the_limit_once_and_replies_raise_it_one_a_round() -> None:
    throttle = Throttle("u", 64)
    began = time.monotonic()
    for _ in range(64):
        throttle.overloaded(began)
    assert throttle.limit == 32 and throttle.bursts == 1
    throttle.overloaded(time.monotonic())
    assert throttle.limit == 16 and throttle.bursts == 2
    for _ in range(16):
        throttle.replied()
    assert 16.9 < throttle.limit < 17 and throttle.bursts == 0


def test_calls_go_to_all_replicas_each_within_its_limit(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x", delay_seconds=0.1)) as one, serve(lambda *_: Answer("x")) as other:
        endpoint = one.endpoint(replicas=(other.base_url,), concurrency=3)
        assert [reply.text for reply in ChatClient(endpoint, tmp_path).complete(rows(60))] == ["x"] * 60
        assert len(one.calls) + len(other.calls) == 60
        # The faster one takes the larger part.
        assert 3 <= len(one.calls) < len(other.calls)
        assert one.most_in_flight <= 3 and other.most_in_flight <= 3


def test_a_replica_that_is_down_costs_no_row(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x", delay_seconds=0.01)) as server:
        endpoint = server.endpoint(replicas=(dead_endpoint().base_url,), concurrency=4, max_attempts=2)
        replies = ChatClient(endpoint, tmp_path, QUICK).complete(rows(60))
    assert [reply.text for reply in replies] == ["x"] * 60 and server.users().count("row 000") == 1


def test_all_replicas_down_are_named(tmp_path: Path) -> None:
    first, second = dead_endpoint(), dead_endpoint()
    endpoint = first.model_copy(update={"replicas": (second.base_url,)})
    with pytest.raises(TemporaryError, match=f"'judge-a' at {first.base_url}, {second.base_url} is down or failing"):
        ChatClient(endpoint, tmp_path, QUICK).complete(rows(3))


@pytest.mark.parametrize("status", [429, 503, 529])
def test_concurrency_settles_at_what_the_server_bears(tmp_path: Path, status: int) -> None:
    seen: list[int] = []

    def script(*_: object) -> Answer:
        seen.append(server.in_flight)
        if seen[-1] > 4:
            return Answer(status=status, headers={"Retry-After": "0"}, delay_seconds=0.2)
        return Answer("x", delay_seconds=0.05)

    with serve(script) as server:
        endpoint = server.endpoint(concurrency=32, max_attempts=50)
        replies = ChatClient(endpoint, tmp_path, QUICK).complete(rows(100))
    assert [reply.text for reply in replies] == ["x"] * 100
    assert max(seen) > 12 and max(seen[-40:]) <= 12


def test_concurrency_falls_before_slow_replies_pass_the_time_limit(tmp_path: Path) -> None:
    seen: list[int] = []

    def script(*_: object) -> Answer:
        seen.append(server.in_flight)
        return Answer("x", delay_seconds=0.05 * seen[-1])

    with serve(script) as server:
        endpoint = server.endpoint(concurrency=64, max_attempts=5, timeout_seconds=2.0)
        replies = ChatClient(endpoint, tmp_path, QUICK).complete(rows(120))
    assert [reply.text for reply in replies] == ["x"] * 120
    # 64 at once take 3.2 s each and are lost; half the limit is 20 at once, one more a round after a cut.
    assert max(seen[-40:]) <= 24 and len(seen) <= 2 * 120


def test_a_prompt_that_the_server_chokes_on_slows_no_other(tmp_path: Path) -> None:
    def script(body: dict, _: int) -> Answer:
        poison = "row 000" <= body["messages"][-1]["content"] < "row 005"
        return Answer(status=500, body="boom") if poison else Answer("x", delay_seconds=0.3)

    with serve(script) as server:
        endpoint = server.endpoint(concurrency=16, max_attempts=2)
        replies = ChatClient(endpoint, tmp_path, QUICK).complete(rows(100))
    assert [reply.error for reply in replies] == ["HTTP 500: boom"] * 5 + [""] * 95
    assert server.most_in_flight > 8


def test_a_pool_waits_for_the_first_pause_to_end() -> None:
    pool = Pool(["a", "b"], 4)
    pool.servers[0].pause(50)
    assert pool.pause_left() == 0
    pool.servers[1].pause(20)
    assert 19 < pool.pause_left() <= 20


@pytest.mark.parametrize("full", [1, 2])
def test_the_end_of_a_pause_wakes_those_that_wait_while_other_servers_are_full(full: int) -> None:
    async def place_after_a_pause() -> str:
        pool = Pool([*(f"full {number}" for number in range(full)), "paused"], 1)
        pool.servers[-1].pause(0.2)
        for _ in range(full):
            await pool.take()
        async with asyncio.timeout(20):
            return (await pool.take()).url

    assert asyncio.run(place_after_a_pause()) == "paused"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_budget_of_calls_is_never_passed_and_a_higher_one_goes_on(tmp_path: Path, concurrency: int) -> None:
    with serve(lambda *_: Answer("x", delay_seconds=0.01)) as server:
        endpoint = server.endpoint(concurrency=concurrency, budget_calls=5, max_tokens=16)
        with pytest.raises(UserError) as caught:
            ChatClient(endpoint, tmp_path).complete(rows(12))
        assert str(caught.value) == (
            "LLM server 'test-llm': budget_calls 5 is reached: model 'm-1' has cost 5 calls, 50 tokens in this state"
            " folder, and the next call may take 414 tokens; raise budget_calls and run again, replies so far are kept"
        )
        assert len(server.calls) == 5
        higher = endpoint.model_copy(update={"budget_calls": 12})
        assert [reply.text for reply in ChatClient(higher, tmp_path).complete(rows(12))] == ["x"] * 12
        assert len(server.calls) == 12 == len(set(server.users()))


def test_asking_whether_a_server_is_alive_stays_within_the_budget(tmp_path: Path) -> None:
    with serve(lambda *_: Answer(body="<html>not what was asked for")) as server:
        endpoint = server.endpoint(concurrency=1, budget_calls=2, max_attempts=2)
        with pytest.raises(UserError, match="budget_calls 2 is reached: model 'm-1' has cost 2 calls"):
            ChatClient(endpoint, tmp_path, QUICK).complete(rows(1))
    assert len(server.calls) == 2


def test_replies_that_are_kept_cost_no_budget(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x")) as server:
        endpoint = server.endpoint(budget_calls=6)
        for _ in range(3):
            assert len(ChatClient(endpoint, tmp_path).complete(rows(6))) == 6
    assert len(server.calls) == 6


@pytest.mark.parametrize("ceiling", [{"budget_tokens": 3000}, {"budget_money": 0.006}])
def test_a_budget_of_tokens_or_money_holds_at_any_concurrency(tmp_path: Path, ceiling: dict) -> None:
    # Each call costs 100 + 20 tokens and 0.0001 + 0.0001 of money, the last ones are held back.
    prices = {"prompt_price": 1.0, "completion_price": 5.0}
    with serve(lambda *_: Answer(body=completion("x", 100, 20), delay_seconds=0.005)) as server:
        for concurrency in (1, 8):
            folder = tmp_path / str(concurrency)
            endpoint = server.endpoint(concurrency=concurrency, max_tokens=20, **prices, **ceiling)
            client = ChatClient(endpoint, folder)
            with pytest.raises(UserError, match=f"{next(iter(ceiling))} .* is reached: model 'm-1' has cost"):
                client.complete(rows(100))
            spent = client.spent()
            assert spent.tokens <= 3000 if "budget_tokens" in ceiling else money(endpoint, spent) <= 0.006
            assert spent.calls > 15 and spent.tokens == 120 * spent.calls


def test_spending_of_another_client_of_the_same_model_counts_and_of_another_model_not(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x")) as server:
        ChatClient(server.endpoint(), tmp_path).complete(rows(3))
        other = server.endpoint(revision="2", budget_calls=3)
        assert len(ChatClient(other, tmp_path).complete(rows(3))) == 3
        with pytest.raises(UserError, match="budget_calls 3 is reached: model 'm-1' has cost 3 calls, 30 tokens"):
            ChatClient(server.endpoint(budget_calls=3), tmp_path).complete(rows(4))


def test_a_ceiling_holds_for_two_caches_with_the_same_books_and_no_text_is_in_them(tmp_path: Path) -> None:
    public, private = tmp_path / "public", tmp_path / "private"
    with serve(lambda *_: Answer("x")) as server:
        ChatClient(server.endpoint(), private).complete(rows(2))  # before they were shared
        client = ChatClient(server.endpoint(budget_calls=5), private, books=public)
        client.complete(rows(4))
        assert (
            len(server.calls) == 4 and client.spent().calls == ChatClient(server.endpoint(), public).spent().calls == 4
        )
        with pytest.raises(UserError, match="budget_calls 5 is reached: model 'm-1' has cost 5 calls"):
            ChatClient(server.endpoint(budget_calls=5), public).complete(rows(2))
        with pytest.raises(UserError, match="budget_calls 5 is reached"):
            client.complete(rows(5))
    with sqlite3.connect(public / FILE_NAME) as database:
        assert database.execute("SELECT COUNT(*) FROM calls").fetchone() == (1,)
        assert database.execute("SELECT * FROM spent").fetchall() == [("m-1", "", 5, 35, 15)]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"error": {"message": "Invalid parameter: response_format of type json_schema"}}'),
        (422, '{"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}'),
        (501, "structured output is not implemented"),
    ],
)
def test_a_server_without_schemas_is_asked_without_and_its_replies_are_read_with_care(
    tmp_path: Path, status: int, body: str
) -> None:
    def script(request: dict, number: int) -> Answer:
        if "response_format" in request:
            return Answer(status=status, body=body)
        return Answer('Well:\n```json\n{"reason": "it\'s so", "passed": true}\n```')

    requests = rows(20, schema_of(Certificate))
    with serve(script) as server:
        client = ChatClient(server.endpoint(concurrency=2, max_attempts=1), tmp_path, QUICK)
        asked = ask(client, requests, reader_of(Certificate))
        assert [one.value and one.value.passed for one in asked] == [True] * 20
        # Those under way meet the refusal, the others are not even tried.
        assert len(server.calls) <= 22
        assert ask(ChatClient(server.endpoint(), tmp_path), requests, reader_of(Certificate)) == asked
        assert len(server.calls) <= 22


def test_an_address_is_no_part_of_the_key_and_a_revision_is(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x")) as one, serve(lambda *_: Answer("x")) as other:
        ChatClient(one.endpoint(), tmp_path).complete(rows(2))
        ChatClient(other.endpoint(concurrency=1, timeout_seconds=9.0, max_attempts=1), tmp_path).complete(rows(2))
        assert not other.calls
        ChatClient(other.endpoint(revision="2026-12"), tmp_path).complete(rows(2))
        assert len(other.calls) == 2


@pytest.mark.parametrize("ceiling", [{"budget_tokens": 5000}, {"budget_money": 0.005}])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(body='{"choices": [{"message": {"content": "x"}}]}'),
        Answer(body='{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1}}'),
        Answer(body="<html>gateway</html>"),
        Answer(cut=True),
        Answer("late", delay_seconds=2.0),
    ],
    ids=["no usage", "half a usage", "no completion", "cut off", "time-out"],
)
def test_a_budget_ends_a_run_before_a_server_that_does_not_count(tmp_path: Path, answer: Answer, ceiling: dict) -> None:
    # Every other call brings a counted reply, so that the server passes for alive.
    prices = {"prompt_price": 1.0, "completion_price": 1.0}
    with serve(lambda _, number: answer if number % 2 else Answer("x")) as server:
        endpoint = server.endpoint(
            max_tokens=200, timeout_seconds=0.5, max_attempts=3, concurrency=4, **prices, **ceiling
        )
        client = ChatClient(endpoint, tmp_path, QUICK)
        with pytest.raises(UserError, match=f"{next(iter(ceiling))} .* is reached: model 'm-1' has cost"):
            client.complete(rows(300))
    spent = client.spent()
    assert 4 < spent.calls < 150
    assert spent.tokens <= 5000 if "budget_tokens" in ceiling else money(endpoint, spent) <= 0.005


@pytest.mark.parametrize("usage", ['"none"', "[]", '{"prompt_tokens": "many"}', '{"prompt_tokens": -4}', "null"])
def test_a_count_that_cannot_be_read_loses_no_reply_and_is_taken_at_most(tmp_path: Path, usage: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "x"}}}}], "usage": {usage}}}'
    with serve(lambda *_: Answer(body=body)) as server:
        client = ChatClient(server.endpoint(), tmp_path)
        assert client.complete(rows(1))[0].text == "x" and len(server.calls) == 1
    most = dearest(call_body(client.endpoint, rows(1)[0]))
    assert client.spent() == Spent(1, most.prompt_tokens, len(body))


def test_a_text_in_parts_is_read_as_one(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking"}, {"type": "text", "text": "b"}]
    body = json.dumps({"choices": [{"message": {"content": parts}}]})
    with serve(lambda *_: Answer(body=body)) as server:
        assert ChatClient(server.endpoint(), tmp_path).complete(rows(1))[0].text == "ab"


def test_an_empty_reply_is_bought_once(tmp_path: Path) -> None:
    with serve(lambda *_: Answer(body=completion(" "))) as server:
        for _ in range(2):
            reply = ChatClient(server.endpoint(), tmp_path).complete(rows(1))[0]
            assert reply.error.startswith("empty reply (finish_reason stop)")
        assert len(server.calls) == 1


def test_a_body_without_an_end_is_a_failed_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_http, "_LONGEST_BODY", 1 << 20)
    with serve(lambda _, number: Answer("x" * (3 << 20) if number == 1 else "short")) as server:
        assert ChatClient(server.endpoint(), tmp_path, QUICK).complete(rows(1))[0].text == "short"


def test_a_cache_that_cannot_be_written_is_named_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_cache, "LOCK_SECONDS", 0.05)
    call = Call("k", "m", "", "http://h", "{}", "{}", True, 1, 1, 0.1)
    with open_cache(tmp_path) as cache, sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TemporaryError, match=r"reply cache .*replies\.sqlite takes no more replies \(database is"):
            cache.put([call])
        other.rollback()
        cache.put([call, call])
        assert cache.find(["k"]) == {"k": ("{}", 0.1)} and cache.spent("m", "") == Spent(2, 2, 2)
