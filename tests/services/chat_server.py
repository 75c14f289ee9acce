"""A real OpenAI-compatible server on a real socket that says what a test scripts."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from iar.config import Endpoint


@dataclass(frozen=True)
class Answer:
    """One HTTP response; `text` is the model's reply unless `body` overrides the whole body."""

    text: str = "ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    delay_seconds: float = 0.0
    trickle: bool = False
    cut: bool = False  # the connection breaks in the middle of the body


Script = Callable[[dict[str, Any], int], Answer]


@dataclass
class ChatServer:
    """What a running server was asked. `calls` are request bodies in order of arrival."""

    base_url: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def endpoint(self, **settings: Any) -> Endpoint:
        return Endpoint(name="test-llm", base_url=self.base_url, model="m-1", **settings)

    def users(self) -> list[str]:
        return [call["messages"][-1]["content"] for call in self.calls]


def user_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def completion(text: str, prompt_tokens: int = 7, completion_tokens: int = 3) -> str:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})


class Server(ThreadingHTTPServer):
    """Keeps a burst of connections waiting: five, the default, would be refused on a busy machine."""

    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that was killed
            super().handle_error(request, client_address)


@contextmanager
def serve(script: Script) -> Iterator[ChatServer]:
    """Serve `script(body, number of this call)` until the block ends."""
    lock = threading.Lock()
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # header and body are two writes: 40 ms a call otherwise

        def do_POST(self) -> None:
            data = self.rfile.read(length := int(self.headers["Content-Length"]))
            if len(data) < length:
                raise ConnectionAbortedError("the client was killed")
            body = json.loads(data)
            with lock:
                state.in_flight += 1
                state.most_in_flight = max(state.most_in_flight, state.in_flight)
                state.calls.append(body)
                state.paths.append(self.path)
                state.authorizations.append(self.headers.get("Authorization", ""))
                number = len(state.calls)
            try:
                self.respond(script(body, number))
            except OSError:
                self.close_connection = True  # the client gave up, as some tests want it to
            finally:
                with lock:
                    state.in_flight -= 1

        def respond(self, answer: Answer) -> None:
            stop.wait(answer.delay_seconds)
            data = (completion(answer.text) if answer.body is None else answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if answer.cut:
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                return
            if answer.trickle:
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.05)
                    if stop.is_set():
                        return
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    state = ChatServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
