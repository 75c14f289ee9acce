"""The chat client against a real socket: patience, error texts, the cache, and the secrecy of the key."""

import email.utils
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from iar.config import Endpoint
from iar.errors import TemporaryError, UserError
from iar.services.llm import ChatClient, ChatRequest, Patience, check
from iar.services.llm_answers import retry_after
from iar.services.reply_cache import FILE_NAME
from tests.services.chat_server import Answer, completion, serve, user_of

QUICK = Patience(first_backoff_seconds=0.005, longest_backoff_seconds=0.05, longest_stall_seconds=5.0)
KEY = "sk-very-secret-0123456789"


def ask(*texts: str) -> list[ChatRequest]:
    return [ChatRequest("be brief", text) for text in texts]


def dead_endpoint() -> Endpoint:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Endpoint(name="judge-a", base_url=f"http://127.0.0.1:{port}/v1", model="m", max_attempts=2)


def test_replies_come_in_order_with_the_server_s_token_counts(tmp_path: Path) -> None:
    with serve(
        lambda body, _: Answer(f"re {user_of(body)}", delay_seconds=0.05 if "0" in user_of(body) else 0)
    ) as server:
        seen: list[tuple[int, int]] = []
        client = ChatClient(server.endpoint(), tmp_path)
        replies = client.complete(ask(*"0123"), lambda done, total: seen.append((done, total)))
    assert [reply.text for reply in replies] == ["re 0", "re 1", "re 2", "re 3"]
    assert (replies[0].prompt_tokens, replies[0].completion_tokens) == (7, 3)
    assert seen[0] == (0, 4) and seen[-1] == (4, 4)
    assert server.calls[0]["temperature"] == 0.0 and server.calls[0]["max_tokens"] == 1024


def test_no_more_calls_are_in_flight_than_the_endpoint_allows(tmp_path: Path) -> None:
    with serve(lambda *_: Answer(delay_seconds=0.03)) as server:
        ChatClient(server.endpoint(concurrency=3), tmp_path).complete(ask(*"abcdefghij"))
    assert server.most_in_flight == 3


def test_equal_requests_are_bought_once_and_a_second_client_buys_nothing(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("x")) as server:
        for _ in range(2):
            replies = ChatClient(server.endpoint(), tmp_path).complete(ask("a", "b", "a"))
            assert [reply.text for reply in replies] == ["x", "x", "x"]
        assert len(server.calls) == 2
        # What changes the reply changes the key: parameters, schema, model, attempt.
        ChatClient(server.endpoint(temperature=0.7), tmp_path).complete(ask("a"))
        ChatClient(server.endpoint(), tmp_path).complete([ChatRequest("be brief", "a", {"type": "object"})])
        ChatClient(server.endpoint(), tmp_path).complete([ChatRequest("be brief", "a", attempt=1)])
        assert len(server.calls) == 5


def test_retry_after_is_honoured_and_waiting_is_no_attempt(tmp_path: Path) -> None:
    def script(_: dict, number: int) -> Answer:
        return Answer(status=429, headers={"Retry-After": "0.2"}) if number <= 3 else Answer("done")

    with serve(script) as server:
        started = time.monotonic()
        replies = ChatClient(server.endpoint(max_attempts=1), tmp_path, QUICK).complete(ask("a"))
    assert replies[0].text == "done" and len(server.calls) == 4
    assert time.monotonic() - started >= 0.6


def test_a_burst_of_429_loses_no_row(tmp_path: Path) -> None:
    def script(_: dict, number: int) -> Answer:
        return Answer(status=429, headers={"Retry-After": "0"}) if number % 3 else Answer("done")

    with serve(script) as server:
        requests = ask(*(f"row {i}" for i in range(30)))
        replies = ChatClient(server.endpoint(max_attempts=3, concurrency=16), tmp_path, QUICK).complete(requests)
    assert [reply.text for reply in replies] == ["done"] * 30


@pytest.mark.parametrize("header", ["3600", None])
def test_waiting_on_429_is_bounded_in_total(tmp_path: Path, header: str | None) -> None:
    with serve(lambda *_: Answer(status=429, headers={"Retry-After": header} if header else {})) as server:
        patience = Patience(0.01, 0.05, longest_stall_seconds=0.3)
        with pytest.raises(TemporaryError, match=r"'test-llm' at http.* keeps answering 429 .*lower concurrency"):
            ChatClient(server.endpoint(), tmp_path, patience).complete(ask("a"))


def test_500_then_ok_is_ok_and_a_wrong_body_is_tried_again(tmp_path: Path) -> None:
    bad = [
        Answer(status=500),
        Answer(body="<html>"),
        Answer(body='{"choices": []}'),
        Answer(body='{"error": "busy"}'),
        Answer(body="[]"),
    ]
    with serve(lambda _, number: bad[number - 1] if number <= len(bad) else Answer("fine")) as server:
        replies = ChatClient(server.endpoint(max_attempts=6), tmp_path, QUICK).complete(ask("a"))
    assert replies[0].text == "fine" and len(server.calls) == 6


@pytest.mark.parametrize("trickle", [False, True])
def test_a_hanging_call_times_out_and_is_tried_again(tmp_path: Path, trickle: bool) -> None:
    # A server that sends a byte now and then never trips a limit on single reads.
    hang = Answer(trickle=True) if trickle else Answer(delay_seconds=30)
    with serve(lambda _, number: hang if number == 1 else Answer("awake")) as server:
        replies = ChatClient(server.endpoint(timeout_seconds=0.3), tmp_path, QUICK).complete(ask("a"))
    assert replies[0].text == "awake" and len(server.calls) == 2


def test_a_prompt_the_server_chokes_on_fails_alone_and_is_never_cached(tmp_path: Path) -> None:
    def script(body: dict, _: int) -> Answer:
        return Answer(status=500, body='{"error": {"message": "boom"}}') if "poison" in user_of(body) else Answer("ok")

    with serve(script) as server:
        client = ChatClient(server.endpoint(max_attempts=2), tmp_path, QUICK)
        replies = client.complete(ask("a", "poison", "b"))
        assert [reply.text for reply in replies] == ["ok", "", "ok"]
        assert replies[1].error == "HTTP 500: boom"
        before = len(server.calls)
        client.complete(ask("a", "poison", "b"))
        assert server.users()[before:].count("poison") == 2 and "a" not in server.users()[before:]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            Answer(status=400, body='{"error": {"message": "too long", "code": "context_length_exceeded"}}'),
            "HTTP 400: too long",
        ),
        (
            # As vLLM says it.
            Answer(status=400, body='{"error": {"message": "This model\'s maximum context length is 9", "code": 400}}'),
            "HTTP 400: This model's maximum context length is 9",
        ),
        (Answer(body=completion(" ")), "empty reply (finish_reason stop); a larger max_tokens may help"),
    ],
)
def test_a_row_that_cannot_be_answered_fails_at_once(tmp_path: Path, answer: Answer, error: str) -> None:
    with serve(lambda *_: answer) as server:
        replies = ChatClient(server.endpoint(), tmp_path, QUICK).complete(ask("a"))
    assert replies[0].error == error and len(server.calls) == 1


def test_an_outage_keeps_what_was_bought_and_the_next_run_buys_the_rest(tmp_path: Path) -> None:
    def script(_: dict, number: int) -> Answer:
        return Answer("bought") if number <= 5 or recovered else Answer(status=503, body="loading")

    recovered = False
    requests = ask(*(f"row {i}" for i in range(12)))
    with serve(script) as server:
        client = ChatClient(server.endpoint(max_attempts=2, concurrency=2), tmp_path, QUICK)
        with pytest.raises(
            TemporaryError, match=r"'test-llm' at http.* down or failing \(HTTP 503: loading; 2 attempts\)"
        ):
            client.complete(requests)
        recovered, before = True, len(server.calls)
        assert len(client.complete(requests)) == 12
        assert len(server.calls) - before == 7


def test_a_reply_under_way_when_another_call_ends_the_run_is_kept(tmp_path: Path) -> None:
    def script(request: dict, _: int) -> Answer:
        slow = request["messages"][-1]["content"] == "slow"
        return Answer("bought", delay_seconds=0.5) if slow else Answer(status=503, body="loading")

    slow, failing = ask("slow", "failing")
    with serve(script) as server:
        client = ChatClient(server.endpoint(max_attempts=1, concurrency=2), tmp_path, QUICK)
        with pytest.raises(TemporaryError, match="down or failing"):
            client.complete([slow, failing])
        assert client.complete([slow])[0].text == "bought"
        assert server.users().count("slow") == 1


def test_nothing_is_bought_twice_after_kill_minus_9(tmp_path: Path) -> None:
    with serve(lambda _, number: Answer("bought", delay_seconds=0 if number <= 6 or killed else 30)) as server:
        killed = False
        code = f"""
            from pathlib import Path
            from iar.config import Endpoint
            from iar.services.llm import ChatClient, ChatRequest
            endpoint = Endpoint(name="t", base_url="{server.base_url}", model="m-1", concurrency=1)
            ChatClient(endpoint, Path("{tmp_path}")).complete([ChatRequest("s", str(i)) for i in range(9)])
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
        deadline = time.monotonic() + 20
        while len(server.calls) < 7 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)  # the next call does not wait for the disk
        process.kill()
        process.wait()
        killed = True
        endpoint = server.endpoint()
        replies = ChatClient(endpoint, tmp_path).complete([ChatRequest("s", str(i)) for i in range(9)])
    assert [reply.text for reply in replies] == ["bought"] * 9
    # Two that wait for the one place may change places, so any may be the one that the kill met.
    assert not set(server.users()[:6]) & set(server.users()[7:]) and len(server.users()) == 10


def test_a_server_that_is_down_ends_a_run_as_temporary(tmp_path: Path) -> None:
    endpoint = dead_endpoint()
    with pytest.raises(TemporaryError) as caught:
        ChatClient(endpoint, tmp_path, QUICK).complete(ask("a"))
    assert str(caught.value) == (
        f"LLM server 'judge-a' at {endpoint.base_url} is down or failing (connection refused; 2 attempts):"
        " bring it back and run again; replies so far are kept"
    )


def test_check_says_in_one_line_that_the_judge_s_server_is_down() -> None:
    endpoint = dead_endpoint()
    with pytest.raises(UserError) as caught:
        check(endpoint)
    assert str(caught.value) == (
        f"LLM server 'judge-a' at {endpoint.base_url} is down or failing (connection refused):"
        " start the server or correct base_url in the run file"
    )


def test_check_passes_a_busy_server_and_makes_one_call() -> None:
    for answer in (Answer("ready"), Answer(status=429)):
        with serve(lambda _, __, answer=answer: answer) as server:
            check(server.endpoint())
            assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Answer(status=401, body=f"bad key {KEY[:9]}"),
            "answered HTTP 401: put a valid API key into environment variable LLM_KEY",
        ),
        (Answer(status=403), "answered HTTP 403: the key in environment variable LLM_KEY may not use model 'm-1'"),
        (
            Answer(status=404, body='{"error": {"message": "no such\\nmodel"}}'),
            "answered HTTP 404 (no such model): check base_url and model 'm-1'",
        ),
        (
            Answer(status=400, body=f'{{"error": {{"message": "what is {KEY}?"}}}}'),
            "answered HTTP 400 (what is ***?): check model 'm-1'",
        ),
        (
            Answer(status=429, body='{"error": {"code": "insufficient_quota", "message": "pay"}}'),
            "answered HTTP 429 (pay): the account's quota",
        ),
        (Answer(status=301, headers={"Location": "http://elsewhere"}), "base_url redirects"),
    ],
)
def test_a_refusal_names_endpoint_status_and_fix_and_not_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str
) -> None:
    monkeypatch.setenv("LLM_KEY", KEY + "\n")
    with serve(lambda *_: answer) as server:
        for call in (check, lambda e: ChatClient(e, tmp_path).complete(ask("a"))):
            with pytest.raises(UserError) as caught:
                call(server.endpoint(api_key_env="LLM_KEY"))
            message = str(caught.value)
            assert message.startswith(f"LLM server 'test-llm' at {server.base_url} ") and words in message
            assert KEY not in message and KEY[:9] not in message and "\n" not in message
    assert server.authorizations[0] == f"Bearer {KEY}"


def test_401_without_a_key_says_where_to_name_it() -> None:
    with (
        serve(lambda *_: Answer(status=401)) as server,
        pytest.raises(UserError, match=r"in api_key_env \(now empty\)"),
    ):
        check(server.endpoint())


def test_the_key_reaches_no_file_no_log_and_no_repr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LLM_KEY", KEY)
    caplog.set_level("DEBUG")
    with serve(lambda *_: Answer(f"your key is {KEY}")) as server:
        client = ChatClient(server.endpoint(api_key_env="LLM_KEY"), tmp_path)
        replies = client.complete(ask("a"))
    assert replies[0].text == "your key is ***"
    assert KEY not in repr(client) + repr(vars(client)) + caplog.text
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("value", [None, "", f"{KEY}\n{KEY}", f"{KEY}é"])
def test_a_missing_or_broken_key_names_the_variable_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("LLM_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("LLM_KEY", value)
    endpoint = Endpoint(name="t", base_url="http://127.0.0.1:1", model="m", api_key_env="LLM_KEY")
    with pytest.raises(UserError, match="environment variable LLM_KEY") as caught:
        ChatClient(endpoint, tmp_path).complete(ask("a"))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url", [
        "http://me:pass-word@host/v1", "https://host/v1?key=pass-word", "http:///v1", "http://host:99999/v1",
        "http://host :80/v1", "http://host:port/v1", "http://[::1/v1",
    ],
)  # fmt: skip
def test_a_base_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UserError, match="base_url must be") as caught:
        check(Endpoint(name="t", base_url=url, model="m"))
    assert "pass-word" not in str(caught.value)


def test_the_environment_s_proxy_is_used_and_its_exceptions_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(lambda *_: Answer("x")) as server:
        monkeypatch.setenv("HTTP_PROXY", server.base_url.removesuffix("/v1"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        far = Endpoint(name="t", base_url="http://llm.example.invalid/v1", model="far")
        assert ChatClient(far, tmp_path).complete(ask("a"))[0].text == "x"
        near = dead_endpoint()
        with pytest.raises(TemporaryError, match="connection refused"):
            ChatClient(near, tmp_path, QUICK).complete(ask("a"))
    assert server.users() == ["a"]


def test_half_a_surrogate_pair_becomes_a_text_that_can_be_written(tmp_path: Path) -> None:
    with serve(lambda *_: Answer(body='{"choices": [{"message": {"content": "a\\ud800b"}}]}')) as server:
        replies = ChatClient(server.endpoint(), tmp_path).complete(ask("a"))
    assert replies[0].text == "a?b"


def test_a_cache_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match=r"reply cache .*replies\.sqlite cannot be used .* move it away"):
        ChatClient(Endpoint(name="t", base_url="http://127.0.0.1:1", model="m"), tmp_path).complete(ask("a"))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), (None, None)],
)
def test_retry_after_reads_numbers(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_retry_after_reads_dates() -> None:
    seconds = retry_after(email.utils.formatdate(time.time() + 30, usegmt=True))
    assert seconds is not None and 28 <= seconds <= 30
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
