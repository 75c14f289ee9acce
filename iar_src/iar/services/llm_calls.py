"""Many calls to the servers of one endpoint: as many at once as these bear, each tried until it is settled."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from iar.errors import TemporaryError
from iar.methods.digest import canonical_json
from iar.services.llm_answers import Answered, Failed, Refused, SchemaRefused, Verdict
from iar.services.llm_budget import Budget, billed_tokens
from iar.services.llm_http import ChatRequest, Exchange, Http, Request, call_body, post
from iar.services.reply_cache import Call, GroupCommit
from iar.services.throttle import Pool, Throttle

PROBE = ChatRequest("Answer with one word.", "Say ready.")
_SLOW_SHARE = 0.5  # of the time limit; past it the next burst would be bought and thrown away


@dataclass(frozen=True)
class Patience:
    """How long a client waits: back-off doubles from first to longest; a stall ends the run.

    The farewell is for calls under way when the run ends by another's error or by an interrupt.
    """

    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0
    longest_stall_seconds: float = 600.0
    longest_farewell_seconds: float = 30.0


@dataclass
class Dialect:
    """What an endpoint was found to understand."""

    schemas: bool = True


class Calls:
    """Calls that share connections, throttles, archive and budget."""

    def __init__(
        self, http: Http, patience: Patience, dialect: Dialect, archive: GroupCommit, probe: Request = PROBE
    ) -> None:
        self._http = http
        self._probe = probe
        self._endpoint = http.endpoint
        self._patience = patience
        self._dialect = dialect
        self._archive = archive
        self._budget = Budget(http.endpoint, archive)
        self._pool = Pool(http.endpoint.base_urls, http.endpoint.concurrency)

    async def until_settled(self, digest: str, request: Request) -> Exchange:
        """Try until there is a reply or a settled failure; waiting on 429 is no attempt."""
        attempts = refusals = 0
        while True:
            server, exchange = await self._once(digest, request, refusals)
            verdict = exchange.verdict
            if isinstance(verdict, Refused):
                refusals += 1
            elif isinstance(verdict, SchemaRefused):
                continue
            elif isinstance(verdict, Answered) or not verdict.retry:
                return exchange
            elif attempts + 1 < self._endpoint.max_attempts:
                attempts += 1
                await self._recover(server, verdict, attempts)
            elif await self._is_alive(server, exchange.began, verdict.reason, attempts + 1):
                return exchange

    async def _once(self, digest: str, request: Request, refusals: int) -> tuple[Throttle, Exchange]:
        """Make one call. Return the server that got it and what came of it."""
        async with self._budget.reserve(call_body(self._endpoint, request)), AsyncExitStack() as place:
            server = await place.enter_async_context(self._pool.slot())
            body = call_body(self._endpoint, request, self._dialect.schemas)
            call = asyncio.create_task(self._call(server, digest, body, refusals, place))
            try:
                return server, await asyncio.shield(call)
            except asyncio.CancelledError:
                # Another call has ended the run. What the server is answering already is paid for, so it is kept.
                await asyncio.wait([call], timeout=self._patience.longest_farewell_seconds)
                call.cancel()
                raise

    async def _call(
        self, server: Throttle, digest: str, body: dict[str, Any], refusals: int, place: AsyncExitStack
    ) -> Exchange:
        exchange = await post(self._http, server.url, body)
        self._adapt(server, exchange, refusals)
        await place.aclose()  # the server has room again, which need not wait for the disk
        await self._keep(digest, server.url, body, exchange)
        return exchange

    async def _keep(self, digest: str, base_url: str, body: dict[str, Any], exchange: Exchange) -> None:
        """Archive a call that may be billed; it is a reply to `digest` unless another try may bring a better one."""
        if exchange.billed:
            usable = bool(digest) and not _may_help(exchange.verdict)
            model, text = self._endpoint.model, canonical_json(body)
            # A ceiling must hold before a server that does not count, too.
            tokens = billed_tokens(self._endpoint, body, exchange.raw)
            await self._archive.put(
                Call(
                    digest, model, self._endpoint.revision, base_url, text, exchange.raw, usable, *tokens,
                    exchange.seconds,
                )
            )  # fmt: skip

    def _adapt(self, server: Throttle, exchange: Exchange, refusals: int) -> None:
        """Learn from a call what the server bears: before the next one takes its place."""
        verdict, began = exchange.verdict, exchange.began
        if isinstance(verdict, Refused):
            server.overloaded(began)
            server.pause(self._backoff(refusals + 1, verdict.wait_seconds))
            self._check_stall()
        elif isinstance(verdict, SchemaRefused):
            self._dialect.schemas = False
        elif isinstance(verdict, Answered):
            server.replied()
            if exchange.seconds > _SLOW_SHARE * self._endpoint.timeout_seconds:
                server.overloaded(began)
        elif isinstance(verdict, Failed) and verdict.retry and (verdict.overload or server.last_reply < began):
            # A fault that others did not meet meanwhile is that of the prompt, and fewer calls would not help.
            server.overloaded(began)

    def _check_stall(self) -> None:
        """Raise TemporaryError once no call came back for too long and every server wants more time."""
        stalled, wait = self._pool.stalled_seconds(), self._pool.pause_left()
        if stalled + wait > self._patience.longest_stall_seconds:
            raise TemporaryError(
                f"{self._who()} keeps answering 429 (too many requests): no reply for {stalled:.0f} s and it asks"
                f" for {wait:.0f} s more; run again later, or lower concurrency (now {self._endpoint.concurrency});"
                " replies so far are kept"
            )

    async def _recover(self, server: Throttle, failed: Failed, attempts: int) -> None:
        """Give the server time, or let the others take over where there are some."""
        if failed.overload and len(self._pool.servers) > 1:
            server.pause(self._backoff(server.bursts, failed.wait_seconds))
        else:
            await asyncio.sleep(self._backoff(attempts, failed.wait_seconds))

    def _backoff(self, tries: int, asked: float | None) -> float:
        """Seconds to wait before the next try: what the server asks, else doubling; never in step with others."""
        longest = self._patience.longest_backoff_seconds
        doubled = min(longest, self._patience.first_backoff_seconds * 2.0 ** min(max(tries, 1) - 1, 30))
        jitter = doubled * random.random() / 2
        if asked is None:
            return doubled / 2 + jitter
        return min(asked, 2 * self._patience.longest_stall_seconds) + jitter

    async def _is_alive(self, server: Throttle, began: float, reason: str, attempts: int) -> bool:
        """Tell a prompt that a server chokes on from a server that is down. Raises TemporaryError if all are down."""
        if server.last_reply > began:
            return True
        alive = await asyncio.gather(*(self._answers(one.url) for one in self._pool.servers))
        if not any(alive):
            raise TemporaryError(
                f"{self._who()} is down or failing ({reason}; {attempts} attempts): bring it back and run again;"
                " replies so far are kept"
            )
        if alive[self._pool.servers.index(server)]:
            return True
        server.pause(self._patience.longest_backoff_seconds)
        return False

    async def _answers(self, base_url: str) -> bool:
        body = call_body(self._endpoint, self._probe)
        async with self._budget.reserve(body):
            exchange = await post(self._http, base_url, body)
            await self._keep("", base_url, body, exchange)
        return not _may_help(exchange.verdict)

    def _who(self) -> str:
        return f"LLM server '{self._endpoint.name}' at {', '.join(self._endpoint.base_urls)}"


def _may_help(verdict: Verdict) -> bool:
    """Whether another try may bring a reply."""
    return isinstance(verdict, Failed) and verdict.retry
