"""The teacher client, 64 calls at once, before a server that takes 200 ms a reply, against the ideal time.

    python benchmarks/bench_teacher.py [--calls 1920] [--at-once 64] [--milliseconds 200] [--rounds 3]

The peer is OpenAI's own asynchronous client behind a semaphore: it retries, but keeps no reply. Ours has every
reply on disk before it counts as there. The bound is calls / at once x the server's time: no client can be faster.
The server is a process of its own, sides take turns, and the median round counts.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from iar.config import Endpoint
from iar.records import write_json
from iar.services.llm import ChatClient, ChatRequest

PROMPT = "Which of the harbour's lamps burns longest, and who lights it? " * 8
CONTENT = json.dumps({"question": PROMPT})
MOST_OVER_IDEAL = 1.10


def response(content: str) -> bytes:
    """Return the one response that the server has."""
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 120, "completion_tokens": 130, "total_tokens": 250}
    reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}
    body = json.dumps(reply).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class SlowReplies(asyncio.Protocol):
    """HTTP/1.1 with connections kept open; answers each request `delay_seconds` after its last byte."""

    def __init__(self, delay_seconds: float, response: bytes) -> None:
        self._delay_seconds = delay_seconds
        self._response = response
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if found and length and len(body) >= int(length[1]):
            self._received = b""
            asyncio.get_running_loop().call_later(self._delay_seconds, self._transport.write, self._response)


async def serve(delay_seconds: float, content: str) -> None:
    """Print the port, then serve until killed."""
    server = await asyncio.get_running_loop().create_server(
        lambda: SlowReplies(delay_seconds, response(content)), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass(frozen=True)
class SlowServer:
    """A running server, and its process."""

    base_url: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken: one near a whole core is what the client waits for."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def slow_server(milliseconds: float, content: str = CONTENT) -> Iterator[SlowServer]:
    """Run the server in a process of its own."""
    command = [sys.executable, __file__, "--serve", "--milliseconds", str(milliseconds), "--content", content]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield SlowServer(f"http://127.0.0.1:{int(server.stdout.readline())}/v1", psutil.Process(server.pid))
        finally:
            server.kill()


def ours(base_url: str, calls: int, at_once: int) -> None:
    """Buy all replies into an empty cache."""
    endpoint = Endpoint(name="bench", base_url=base_url, model="m", concurrency=at_once)
    with tempfile.TemporaryDirectory() as folder:
        replies = ChatClient(endpoint, Path(folder)).complete(
            [ChatRequest("Answer.", f"{number}. {PROMPT}") for number in range(calls)]
        )
    assert all(reply.text for reply in replies)


def peer(base_url: str, calls: int, at_once: int) -> None:
    """Buy the same with OpenAI's client."""
    from openai import AsyncOpenAI

    async def buy() -> list[str | None]:
        allowed = asyncio.Semaphore(at_once)

        async def one(number: int) -> str | None:
            async with allowed:
                reply = await client.chat.completions.create(
                    model="m",
                    messages=[
                        {"role": "system", "content": "Answer."},
                        {"role": "user", "content": f"{number}. {PROMPT}"},
                    ],
                    temperature=0.0,
                    top_p=1.0,
                    max_tokens=1024,
                )
            return reply.choices[0].message.content

        async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
            return await asyncio.gather(*(one(number) for number in range(calls)))

    assert all(asyncio.run(buy()))


def measure(calls: int, at_once: int, milliseconds: float, rounds: int) -> dict[str, Any]:
    """Return the entry of results.json, in seconds for all calls."""
    sides = {"ours": ours, "peer": peer}
    took: dict[str, list[float]] = {name: [] for name in sides}
    with slow_server(milliseconds) as server:
        for buy in sides.values():  # imports and first connections are left out
            buy(server.base_url, at_once, at_once)
        for _ in range(rounds):
            for name, buy in sides.items():
                start = time.perf_counter()
                buy(server.base_url, calls, at_once)
                took[name].append(time.perf_counter() - start)
    ideal = calls / at_once * milliseconds / 1000
    median = {name: statistics.median(seconds) for name, seconds in took.items()}
    return {
        **median,
        "ratio": median["peer"] / median["ours"],
        "bound": ideal,
        "over_ideal": {name: seconds / ideal for name, seconds in median.items()},
        "unit": "s",
        "sizes": {"calls": calls, "at_once": at_once, "server_milliseconds": milliseconds, "rounds": rounds},
        "rounds": took,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }


def table(entry: dict[str, Any]) -> str:
    """Return the entry as one line to read."""
    sizes, over = entry["sizes"], entry["over_ideal"]
    kept = "kept" if over["ours"] <= MOST_OVER_IDEAL else "NOT kept"
    return (
        f"teacher, {sizes['calls']} calls, {sizes['at_once']} at once, {sizes['server_milliseconds']:g} ms a reply: "
        f"ideal {entry['bound']:.2f} s, ours {entry['ours']:.2f} s ({over['ours']:.1%}), "
        f"openai {entry['peer']:.2f} s ({over['peer']:.1%}), ratio {entry['ratio']:.2f}; "
        f"bound of {MOST_OVER_IDEAL:.0%} {kept}"
    )


def main() -> None:
    """Print one line, and write it as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1920)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--milliseconds", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("--content", default=CONTENT, help="what the server replies")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.milliseconds / 1000, options.content))
        return
    entry = measure(options.calls, options.at_once, options.milliseconds, options.rounds)
    print(table(entry))
    if options.out:
        write_json(options.out, {"teacher": entry})


if __name__ == "__main__":
    main()
