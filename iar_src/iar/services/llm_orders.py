"""What a client is asked for, row by row: looked up in the reply cache a little ahead of the calls, and bought once."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from iar.config import Endpoint
from iar.methods.digest import canonical_json, digest_text
from iar.services.llm_answers import Answered, Failed, Verdict, read_completion
from iar.services.llm_http import Body, Exchange, Request, call_body
from iar.services.reply_cache import ReplyCache, Stored

_ROWS_AHEAD = 64  # looked up at once: some milliseconds in which no call goes out


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


@dataclass(frozen=True)
class Order:
    """A request to buy: its key in the cache, and what a call for it sends."""

    key: str
    request: Request
    body: Body


class Orders:
    """The requests of one client, in order, and the replies to them.

    They are put into JSON and looked up while earlier ones are under way, so that servers do not wait for that.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Request],
        cache: ReplyCache,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._requests = iter(requests)
        self.count = len(requests)
        self._cache = cache
        self._on_progress = on_progress
        self._keys: list[str] = []
        self._uses: Counter[str] = Counter()
        self._replies: dict[str, ChatReply] = {}
        self._done = 0
        self._ready: deque[Order] = deque()
        self._looking_up = asyncio.Lock()

    async def first(self) -> Order | None:
        """Return what `take` will return, and leave it there."""
        if not self._ready:
            async with self._looking_up:
                while not self._ready and (rows := list(islice(self._requests, _ROWS_AHEAD))):
                    await self._look_up(rows)
        return self._ready[0] if self._ready else None

    async def take(self) -> Order | None:
        """Return the next request that no reply is stored for, each key once; None after the last."""
        return self._ready.popleft() if await self.first() else None

    def settle(self, order: Order, exchange: Exchange, stored: Stored) -> None:
        """Note what came of an order, unless that could not be stored."""
        if not stored.cancelled() and not stored.exception():
            self._replies[order.key] = _reply(exchange.verdict, exchange.seconds)
            self._done += self._uses[order.key]
            self.tell()

    def replies(self) -> list[ChatReply]:
        """Return one reply a request, in order, once all orders are settled."""
        return [self._replies[key] for key in self._keys]

    def tell(self) -> None:
        """Report how many requests have a reply."""
        if self._on_progress:
            self._on_progress(self._done, self.count)

    async def _look_up(self, requests: Sequence[Request]) -> None:
        new: dict[str, Order] = {}
        for request in requests:
            body = call_body(self._endpoint, request)
            key = _key(self._endpoint.revision, body, request.attempt)
            self._keys.append(key)
            self._uses[key] += 1
            if key in self._replies:
                self._done += 1
            elif self._uses[key] == 1:
                new[key] = Order(key, request, body)
        stored = await asyncio.to_thread(self._cache.find, list(new))
        for key, order in new.items():
            if key in stored:
                raw, seconds = stored[key]
                self._replies[key] = _reply(read_completion(raw), seconds)
                self._done += self._uses[key]
            else:
                self._ready.append(order)
        self.tell()


def _key(revision: str, body: Body, attempt: int) -> str:
    """Return the digest of revision, body and attempt, as `digest_json` makes it.

    The body holds model, prompt and parameters; the address is left out: replicas serve the same model.
    """
    return digest_text(f'{{"attempt":{attempt},"body":{body.text},"revision":{canonical_json(revision)}}}')


def _reply(verdict: Verdict, seconds: float) -> ChatReply:
    if isinstance(verdict, Answered):
        return ChatReply(verdict.text, "", verdict.prompt_tokens, verdict.completion_tokens, seconds, verdict.truncated)
    reason = verdict.reason if isinstance(verdict, Failed) else "too many requests"
    return ChatReply("", reason, 0, 0, seconds)
