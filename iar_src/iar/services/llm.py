"""Client of an OpenAI-compatible chat server: many prompts at once, patient, and nothing bought twice."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from iar.config import Endpoint
from iar.errors import UserError
from iar.services.llm_answers import Failed, Verdict
from iar.services.llm_calls import PROBE, Calls, Dialect, Patience
from iar.services.llm_http import ChatRequest, CompletionRequest, Request, call_body, open_http, post
from iar.services.llm_orders import ChatReply, Orders
from iar.services.reply_cache import GroupCommit, ReplyCache, Spent, open_cache

__all__ = ["ChatClient", "ChatReply", "ChatRequest", "CompletionRequest", "Patience", "check"]

_CHECK_TIMEOUT_SECONDS = 30.0  # a preflight answers soon or says that nobody does


class ChatClient:
    """Sends prompts to the servers of one endpoint and keeps every reply in `cache_folder`.

    `books` as `open_cache` takes it: the cache that counts what is spent, where it is another one.
    """

    def __init__(
        self, endpoint: Endpoint, cache_folder: Path, patience: Patience | None = None, books: Path | None = None
    ) -> None:
        self.endpoint = endpoint
        self._cache_folder = cache_folder
        self._books = books
        self._patience = patience or Patience()
        self._dialect = Dialect()

    def complete(
        self, requests: Sequence[Request], on_progress: Callable[[int, int], None] | None = None
    ) -> list[ChatReply]:
        """Return one reply a request, in order; equal requests are bought once.

        A call that fails while the server answers others becomes a reply with `error`. Raises
        UserError where the user must act or a ceiling of the budget is reached, TemporaryError where the
        servers are down or refuse for too long; replies received before that are kept. What `on_progress`
        raises is logged and ends nothing.
        """
        with open_cache(self._cache_folder, self._books) as cache:
            orders = Orders(self.endpoint, requests, cache, on_progress)
            gc.freeze()  # to look through all that the process holds would stop every call for a tenth of a second
            try:
                asyncio.run(self._buy(orders, cache))
            finally:
                gc.unfreeze()
        return orders.replies()

    def spent(self) -> Spent:
        """Return what the endpoint's model has cost so far by these books, by other runs too."""
        with open_cache(self._cache_folder, self._books) as cache:
            return cache.spent(self.endpoint.model, self.endpoint.revision)

    async def _buy(self, orders: Orders, cache: ReplyCache) -> None:
        orders.tell()
        first = await orders.first()
        if first is None:
            return

        async def work() -> None:
            last = calls.stored
            while order := await orders.take():
                exchange, stored = await calls.until_settled(order)
                stored.add_done_callback(partial(orders.settle, order, exchange))
                await last  # the next call does not wait for the disk, the one after it does
                last = stored
            await last

        archive = GroupCommit(cache, self.endpoint.model, self.endpoint.revision)
        # Twice as many as may be in flight: some wait before they try again, or, with a ceiling, for the disk.
        workers = 2 * self.endpoint.concurrency * len(self.endpoint.base_urls)
        # A server is asked whether it lives by a call of the kind that it is there for.
        probe = PROBE if isinstance(first.request, ChatRequest) else replace(first.request, max_tokens=1)
        async with open_http(self.endpoint) as http:
            calls = Calls(http, self._patience, self._dialect, archive, probe)
            await calls.run([work() for _ in range(min(workers, orders.count))])


def check(endpoint: Endpoint, request: Request = PROBE) -> None:
    """Make one minimal real call to each server. Raises UserError, one line with the address and the fix."""

    async def probe() -> list[Verdict]:
        async with open_http(endpoint, most_seconds=_CHECK_TIMEOUT_SECONDS) as http:
            body = call_body(endpoint, request)
            exchanges = await asyncio.gather(*(post(http, base_url, body) for base_url in endpoint.base_urls))
        return [exchange.verdict for exchange in exchanges]

    for base_url, verdict in zip(endpoint.base_urls, asyncio.run(probe()), strict=True):
        if isinstance(verdict, Failed) and verdict.retry:
            raise UserError(
                f"LLM server '{endpoint.name}' at {base_url} is down or failing ({verdict.reason}):"
                " start the server or correct base_url in the run file"
            )
