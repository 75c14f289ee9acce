"""Many calls to the servers of one endpoint: as many at once as these bear, each tried until it is settled."""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from iar.errors import TemporaryError
from iar.services.llm_answers import Answered, Failed, Refused, SchemaRefused, Verdict
from iar.services.llm_budget import Budget, billed_tokens
from iar.services.llm_http import Body, ChatRequest, Exchange, Http, Request, call_body, post
from iar.services.llm_orders import Order
from iar.services.reply_cache import Call, GroupCommit, Stored
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
        self._under_way: set[asyncio.Task[Any]] = set()
        self._ended = False
        self.stored: Stored = asyncio.get_running_loop().create_future()  # of a call that leaves nothing to store
        self.stored.set_result(None)

    async def run(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run all, each of which makes calls; on the first error end them and raise that error."""
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            await self._end(tasks)

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Stop those that wait at once; what a server is answering already is paid for, so it is kept."""
        self._ended = True
        for task in tasks:
            if task not in self._under_way:
                task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._patience.longest_farewell_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._archive.drain()

    async def until_settled(self, order: Order) -> tuple[Exchange, Stored]:
        """Try until there is a reply, or a settled failure; either counts once stored. Waiting on 429 is no attempt."""
        attempts = refusals = 0
        while True:
            server, exchange, stored = await self._once(order, refusals)
            verdict = exchange.verdict
            if isinstance(verdict, Answered):
                return exchange, stored
            await stored
            if isinstance(verdict, Refused):
                refusals += 1
            elif isinstance(verdict, SchemaRefused):
                continue
            elif not verdict.retry:
                return exchange, stored
            elif attempts + 1 < self._endpoint.max_attempts:
                attempts += 1
                await self._recover(server, verdict, attempts)
            elif await self._is_alive(server, exchange.began, verdict.reason, attempts + 1):
                return exchange, stored

    async def _once(self, order: Order, refusals: int) -> tuple[Throttle, Exchange, Stored]:
        """Make one call. Return the server that got it, what came of it, and when that is on disk."""
        task = asyncio.current_task()
        assert task is not None
        async with self._budget.reserve(order.body):
            server = await self._pool.take()
            body = order.body
            if body.has_schema and not self._dialect.schemas:
                body = call_body(self._endpoint, order.request, with_schema=False)
            self._under_way.add(task)
            try:
                exchange = await post(self._http, server.url, body)
                self._adapt(server, exchange, refusals)
            finally:
                self._under_way.discard(task)
                self._pool.give_back(server)  # it has room again, which need not wait for the disk
            stored = self._keep(order.key, server.url, body, exchange)
            if self._endpoint.has_budget:
                await stored  # what a call could cost is set aside until what it did cost is in the books
        if self._ended:
            raise asyncio.CancelledError
        return server, exchange, stored

    def _keep(self, key: str, base_url: str, body: Body, exchange: Exchange) -> Stored:
        """Archive a call that may be billed; it is a reply to `key` unless another try may bring a better one."""
        if not exchange.billed:
            return self.stored
        usable = bool(key) and not _may_help(exchange.verdict)
        # A ceiling must hold before a server that does not count, too.
        tokens = billed_tokens(body, exchange)
        model, revision = self._endpoint.model, self._endpoint.revision
        return self._archive.put(
            Call(key, model, revision, base_url, body.text, exchange.raw, usable, *tokens, exchange.seconds)
        )

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
