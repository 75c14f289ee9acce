"""What a chat client buys of many requests: looked up while others are under way, and each key once."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from iar.errors import TemporaryError
from iar.methods.digest import digest_json
from iar.services.llm import ChatClient, ChatRequest
from iar.services.reply_cache import Call, ReplyCache, open_cache
from tests.services.chat_server import Answer, completion, serve, user_of


def test_stored_failed_and_repeated_requests_are_told_apart_however_far_apart_they_stand(tmp_path: Path) -> None:
    def script(body: dict, _: int) -> Answer:
        refused = Answer(status=400, body='{"error": "context length"}')
        return refused if user_of(body) == "row 7" else Answer(f"re {user_of(body)}")

    # More rows than are looked up at once, each three times over, some of them bought before.
    rows = [ChatRequest("s", f"row {number % 100}") for number in range(300)]
    seen: list[tuple[int, int]] = []
    with serve(script) as server:
        ChatClient(server.endpoint(), tmp_path).complete(rows[20:40] + rows[90:95])
        replies = ChatClient(server.endpoint(), tmp_path).complete(rows, lambda *done: seen.append(done))
        assert sorted(server.users()) == sorted(f"row {number}" for number in range(100))
    assert [reply.text for reply in replies] == ["" if row.user == "row 7" else f"re {row.user}" for row in rows]
    assert replies[7].error == "HTTP 400: context length" and replies[7] == replies[107] == replies[207]
    assert seen == sorted(seen) and seen[0] == (0, 300) and seen[-1] == (300, 300)


def test_where_all_is_stored_no_key_and_no_server_is_needed(tmp_path: Path) -> None:
    rows = [ChatRequest("s", f"row {number}") for number in range(130)]
    with serve(lambda *_: Answer("x")) as server:
        bought = ChatClient(server.endpoint(), tmp_path).complete(rows)
        endpoint = server.endpoint(api_key_env="NEVER_SET_ANYWHERE")
    assert ChatClient(endpoint, tmp_path).complete(rows) == bought


def test_the_key_is_the_digest_of_revision_body_and_attempt(tmp_path: Path) -> None:
    request = ChatRequest("s", 'Who said "é, 灯"?', {"type": "object"}, attempt=2)
    with serve(lambda *_: Answer("x")) as server:
        endpoint = server.endpoint(revision='2026 "ü"')
        ChatClient(endpoint, tmp_path / "sent").complete([request])
        key = digest_json({"revision": endpoint.revision, "body": server.calls[0], "attempt": 2})
        call = Call(key, "m-1", endpoint.revision, "http://h", "{}", completion("kept"), True, 7, 3, 0.1)
        with open_cache(tmp_path / "kept") as cache:
            cache.put([call])
        assert ChatClient(endpoint, tmp_path / "kept").complete([request])[0].text == "kept"
        assert len(server.calls) == 1


def test_the_reply_stored_first_is_the_one_that_is_served(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        bodies = [completion(text) for text in ("first", "second")]
        cache.put([Call("k", "m", "", "http://h", "{}", body, True, 7, 3, 0.1) for body in bodies])
        cache.put([Call("k", "m", "", "http://h", "{}", "<html>", False, 7, 3, 0.1)])
        assert cache.find(["k", "other"]) == {"k": (bodies[0], 0.1)}


def test_a_reply_is_reported_while_the_next_call_of_the_same_place_is_under_way(tmp_path: Path) -> None:
    reported = threading.Event()

    def script(_: dict, number: int) -> Answer:
        return Answer("x" if number == 1 else f"reported: {reported.wait(30)}")

    def note(done: int, _: int) -> None:
        if done == 1:
            reported.set()

    with serve(script) as server:
        replies = ChatClient(server.endpoint(concurrency=1), tmp_path).complete(
            [ChatRequest("s", "a"), ChatRequest("s", "b")], note
        )
    assert [reply.text for reply in replies] == ["x", "reported: True"]


@pytest.mark.parametrize("good", [0, 1, 5])
def test_a_disk_that_takes_no_more_replies_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    put = ReplyCache.put
    stored: list[Call] = []

    def full(cache: ReplyCache, calls: Sequence[Call]) -> None:
        if len(stored) + len(calls) > good:
            raise TemporaryError("reply cache takes no more replies")
        put(cache, calls)
        stored.extend(calls)

    rows = [ChatRequest("s", f"row {number}") for number in range(6)]
    seen: list[int] = []
    with serve(lambda *_: Answer("x")) as server:
        with monkeypatch.context() as patched:
            patched.setattr(ReplyCache, "put", full)
            with pytest.raises(TemporaryError, match="takes no more replies"):
                ChatClient(server.endpoint(concurrency=1), tmp_path).complete(rows, lambda done, _: seen.append(done))
        assert seen[-1] == len(stored) <= good  # what is not on disk does not count
        before = len(server.calls)
        assert len(ChatClient(server.endpoint(), tmp_path).complete(rows)) == 6
        assert len(server.calls) - before == 6 - len(stored)


def test_a_reply_under_way_when_the_user_interrupts_is_kept(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("bought", delay_seconds=1.0)) as server:
        # A shell that starts the tests in the background makes all of them ignore the signal.
        code = f"""
            import signal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            from pathlib import Path
            from iar.config import Endpoint
            from iar.services.llm import ChatClient, ChatRequest
            endpoint = Endpoint(name="t", base_url="{server.base_url}", model="m-1", concurrency=1)
            ChatClient(endpoint, Path("{tmp_path}")).complete([ChatRequest("s", str(number)) for number in range(3)])
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not server.calls and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0 and server.users() == ["0"]
        assert ChatClient(server.endpoint(), tmp_path).complete([ChatRequest("s", "0")])[0].text == "bought"
        assert server.users() == ["0"]
