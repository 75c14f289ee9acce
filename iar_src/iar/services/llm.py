"""Client of an OpenAI-compatible chat server: many prompts at once, patient, and nothing bought twice."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from iar.config import Endpoint
from iar.errors import TemporaryError, UserError
from iar.methods.digest import canonical_json, digest_json
from iar.services.llm_answers import Answered, Failed, Refused, Verdict, read_completion
from iar.services.llm_http import ChatRequest, Exchange, chat_body, open_http, post
from iar.services.reply_cache import CachedReply, ReplyCache, open_cache
from iar.services.throttle import Throttle

__all__ = ["ChatClient", "ChatReply", "ChatRequest", "Patience", "check"]

_PROBE = ChatRequest("Answer with one word.", "Say ready.")
_CHECK_TIMEOUT_SECONDS = 30.0  # a preflight answers soon or says that nobody does


@dataclass(frozen=True)
class ChatReply:
    """The reply's text, or `error` with the reason why there is none. Tokens are the server's count."""

    text: str
    error: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True)
class Patience:
    """How long a client waits: back-off doubles from first to longest; a stall ends the run.

    The farewell is for calls under way when the run ends by another's error or by an interrupt.
    """

    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0
    longest_stall_seconds: float = 600.0
    longest_farewell_seconds: float = 30.0


class ChatClient:
    """Sends prompts to one endpoint and keeps every reply in `cache_folder`."""

    def __init__(self, endpoint: Endpoint, cache_folder: Path, patience: Patience | None = None) -> None:
        self.endpoint = endpoint
        self._cache_folder = cache_folder
        self._patience = patience or Patience()

    def complete(
        self, requests: Sequence[ChatRequest], on_progress: Callable[[int, int], None] | None = None
    ) -> list[ChatReply]:
        """Return one reply a request, in order; equal requests are bought once.

        A call that fails while the server answers others becomes a reply with `error`. Raises
        UserError where the user must act, TemporaryError where the server is down or refuses for too
        long; replies received before that are kept.
        """
        keys = [self._key(request) for request in requests]
        replies: dict[str, ChatReply] = {}
        with open_cache(self._cache_folder) as cache:
            wanted: dict[str, ChatRequest] = {}
            for key, request in zip(keys, requests, strict=True):
                stored = cache.get(key)
                if stored:
                    replies[key] = _reply(read_completion(stored.raw), stored.seconds)
                else:
                    wanted[key] = request
            report = _progress_over(keys, replies, on_progress)
            if wanted:
                asyncio.run(self._buy(wanted, replies, cache, report))
        return [replies[key] for key in keys]

    def _key(self, request: ChatRequest) -> str:
        return digest_json(
            {
                "base_url": self.endpoint.base_url,
                "body": chat_body(self.endpoint, request),
                "attempt": request.attempt,
            }
        )

    async def _buy(
        self,
        wanted: dict[str, ChatRequest],
        replies: dict[str, ChatReply],
        cache: ReplyCache,
        report: Callable[[str], None],
    ) -> None:
        queue = iter(wanted.items())

        async def work() -> None:
            for digest, request in queue:
                replies[digest] = await calls.until_settled(digest, request)
                report(digest)

        async with open_http(self.endpoint) as (client, key):
            calls = _Calls(self.endpoint, self._patience, client, key, cache)
            await _all_or_first_error([work() for _ in range(min(self.endpoint.concurrency, len(wanted)))])


class _Calls:
    """The calls of one `complete`: they share a connection pool, a throttle and the cache."""

    def __init__(
        self, endpoint: Endpoint, patience: Patience, client: httpx.AsyncClient, key: SecretStr, cache: ReplyCache
    ) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._client = client
        self._key = key
        self._cache = cache
        self._throttle = Throttle(endpoint.concurrency)

    async def until_settled(self, digest: str, request: ChatRequest) -> ChatReply:
        """Try until there is a reply or a settled failure; waiting on 429 is no attempt."""
        attempts = refusals = 0
        while True:
            exchange = await self._once(digest, request, refusals)
            verdict = exchange.verdict
            if isinstance(verdict, Refused):
                refusals += 1
                continue
            if isinstance(verdict, Answered):
                break
            attempts += 1
            if not verdict.retry:
                break
            if attempts >= self._endpoint.max_attempts:
                await self._confirm_alive(verdict.reason, attempts)
                break
            await asyncio.sleep(self._backoff(attempts, verdict.wait_seconds))
        return _reply(verdict, exchange.seconds)

    async def _once(self, digest: str, request: ChatRequest, refusals: int) -> Exchange:
        async with self._throttle.slot():
            call = asyncio.create_task(self._call(digest, request))
            try:
                exchange = await asyncio.shield(call)
            except asyncio.CancelledError:
                # Another call has ended the run. What the server is answering already is paid for, so it is kept.
                await asyncio.wait([call], timeout=self._patience.longest_farewell_seconds)
                call.cancel()
                raise
            if isinstance(exchange.verdict, Answered):
                self._throttle.replied()
            elif isinstance(exchange.verdict, Refused):
                self._pause(exchange.verdict, refusals + 1)
            return exchange

    async def _call(self, digest: str, request: ChatRequest) -> Exchange:
        exchange = await post(self._client, self._endpoint, self._key, request)
        if isinstance(exchange.verdict, Answered):
            body = canonical_json(chat_body(self._endpoint, request))
            self._cache.put(digest, self._endpoint.model, body, CachedReply(exchange.raw, exchange.seconds))
        return exchange

    def _pause(self, refused: Refused, refusals: int) -> None:
        """Pause all calls as the server asks; raise TemporaryError once no call came back for too long."""
        wait = self._backoff(refusals, refused.wait_seconds)
        stalled = self._throttle.stalled_seconds()
        if stalled + wait > self._patience.longest_stall_seconds:
            raise TemporaryError(
                f"LLM server '{self._endpoint.name}' at {self._endpoint.base_url} keeps answering 429 (too many"
                f" requests): no reply for {stalled:.0f} s and it asks for {wait:.0f} s more; run again later,"
                f" or lower concurrency (now {self._endpoint.concurrency}); replies so far are kept"
            )
        self._throttle.refused(wait)

    def _backoff(self, tries: int, asked: float | None) -> float:
        """Seconds to wait before the next try: what the server asks, else doubling; never in step with others."""
        longest = self._patience.longest_backoff_seconds
        doubled = min(longest, self._patience.first_backoff_seconds * 2.0 ** min(tries - 1, 30))
        jitter = doubled * random.random() / 2
        if asked is None:
            return doubled / 2 + jitter
        return min(asked, 2 * self._patience.longest_stall_seconds) + jitter

    async def _confirm_alive(self, reason: str, attempts: int) -> None:
        """Tell a prompt the server chokes on from a server that is down; raise TemporaryError for the latter."""
        verdict = (await post(self._client, self._endpoint, self._key, _PROBE)).verdict
        if isinstance(verdict, Failed) and verdict.retry:
            raise TemporaryError(
                f"LLM server '{self._endpoint.name}' at {self._endpoint.base_url} is down or failing"
                f" ({reason}; {attempts} attempts): bring it back and run again; replies so far are kept"
            )


def check(endpoint: Endpoint) -> None:
    """Make one minimal real call. Raises UserError, one line with the address and the fix."""

    async def probe() -> Verdict:
        async with open_http(endpoint, most_seconds=_CHECK_TIMEOUT_SECONDS) as (client, key):
            return (await post(client, endpoint, key, _PROBE)).verdict

    verdict = asyncio.run(probe())
    if isinstance(verdict, Failed) and verdict.retry:
        raise UserError(
            f"LLM server '{endpoint.name}' at {endpoint.base_url} is down or failing ({verdict.reason}):"
            " start the server or correct base_url in the run file"
        )


def _reply(verdict: Verdict, seconds: float) -> ChatReply:
    if isinstance(verdict, Answered):
        return ChatReply(verdict.text, "", verdict.prompt_tokens, verdict.completion_tokens, seconds)
    reason = verdict.reason if isinstance(verdict, Failed) else "too many requests"
    return ChatReply("", reason, 0, 0, seconds)


def _progress_over(
    keys: Sequence[str], known: Collection[str], on_progress: Callable[[int, int], None] | None
) -> Callable[[str], None]:
    """Report how many requests have a reply, now and whenever the returned function is told of another key."""
    uses = Counter(keys)
    done = sum(uses[key] for key in known)

    def report(key: str = "") -> None:
        nonlocal done
        done += uses[key]
        if on_progress:
            on_progress(done, len(keys))

    report()
    return report


async def _all_or_first_error(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; on the first error stop the others and raise that error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
