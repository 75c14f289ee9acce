"""Client of an OpenAI-compatible chat server: many prompts at once, patient, and nothing bought twice."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iar.config import Endpoint
from iar.errors import UserError
from iar.methods.digest import digest_json
from iar.services.llm_answers import Answered, Failed, Verdict, read_completion
from iar.services.llm_calls import PROBE, Calls, Dialect, Patience
from iar.services.llm_http import ChatRequest, CompletionRequest, Request, call_body, open_http, post
from iar.services.reply_cache import GroupCommit, ReplyCache, Spent, open_cache

__all__ = ["ChatClient", "ChatReply", "ChatRequest", "CompletionRequest", "Patience", "check"]

_CHECK_TIMEOUT_SECONDS = 30.0  # a preflight answers soon or says that nobody does


@dataclass(frozen=True)
class ChatReply:
    """The reply's text, or `error` with the reason why there is none. Tokens are the server's count.

    `truncated`: the limit on its length ended it.
    """

    text: str
    error: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    truncated: bool = False


class ChatClient:
    """Sends prompts to the servers of one endpoint and keeps every reply in `cache_folder`."""

    def __init__(self, endpoint: Endpoint, cache_folder: Path, patience: Patience | None = None) -> None:
        self.endpoint = endpoint
        self._cache_folder = cache_folder
        self._patience = patience or Patience()
        self._dialect = Dialect()

    def complete(
        self, requests: Sequence[Request], on_progress: Callable[[int, int], None] | None = None
    ) -> list[ChatReply]:
        """Return one reply a request, in order; equal requests are bought once.

        A call that fails while the server answers others becomes a reply with `error`. Raises
        UserError where the user must act or a ceiling of the budget is reached, TemporaryError where the
        servers are down or refuse for too long; replies received before that are kept.
        """
        keys = [self._key(request) for request in requests]
        replies: dict[str, ChatReply] = {}
        with open_cache(self._cache_folder) as cache:
            wanted: dict[str, Request] = {}
            for key, request in zip(keys, requests, strict=True):
                stored = cache.get(key)
                if stored:
                    raw, seconds = stored
                    replies[key] = _reply(read_completion(raw), seconds)
                else:
                    wanted[key] = request
            report = _progress_over(keys, replies, on_progress)
            if wanted:
                asyncio.run(self._buy(wanted, replies, cache, report))
        return [replies[key] for key in keys]

    def spent(self) -> Spent:
        """Return what this cache's replies of the endpoint's model have cost so far, by other runs too."""
        with open_cache(self._cache_folder) as cache:
            return cache.spent(self.endpoint.model, self.endpoint.revision)

    def _key(self, request: Request) -> str:
        # The body holds model, prompt and parameters; the address is left out: replicas serve the same model.
        body = call_body(self.endpoint, request)
        return digest_json({"revision": self.endpoint.revision, "body": body, "attempt": request.attempt})

    async def _buy(
        self,
        wanted: dict[str, Request],
        replies: dict[str, ChatReply],
        cache: ReplyCache,
        report: Callable[[str], None],
    ) -> None:
        queue = iter(wanted.items())

        async def work() -> None:
            for digest, request in queue:
                exchange = await calls.until_settled(digest, request)
                replies[digest] = _reply(exchange.verdict, exchange.seconds)
                report(digest)

        archive = GroupCommit(cache, self.endpoint.model, self.endpoint.revision)
        # Twice as many as may be in flight: some wait for the disk, or before they try again.
        most = 2 * self.endpoint.concurrency * len(self.endpoint.base_urls)
        # A server is asked whether it lives by a call of the kind that it is there for.
        first = next(iter(wanted.values()))
        probe = PROBE if isinstance(first, ChatRequest) else replace(first, max_tokens=1)
        async with open_http(self.endpoint) as http:
            calls = Calls(http, self._patience, self._dialect, archive, probe)
            await _all_or_first_error([work() for _ in range(min(most, len(wanted)))])


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


def _reply(verdict: Verdict, seconds: float) -> ChatReply:
    if isinstance(verdict, Answered):
        return ChatReply(verdict.text, "", verdict.prompt_tokens, verdict.completion_tokens, seconds, verdict.truncated)
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
