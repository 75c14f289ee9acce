"""One call to an OpenAI-compatible chat server.

The API key is read from its environment variable for each client and stands in no record, log line
or error text: what a server sends is cleaned of it before anybody reads it.
"""

import asyncio
import os
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from pydantic import SecretStr

from iar.config import Endpoint
from iar.errors import UserError
from iar.services.llm_answers import Failed, Verdict, judge_response, transport_reason

_LONGEST_BODY = 32 << 20  # bytes; the longest replies of any model are a few hundred thousand
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # no server has seen the call
_SHORTEST_SECRET = 8  # a placeholder such as "EMPTY" is no secret, and may well occur in a reply


@dataclass(frozen=True)
class ChatRequest:
    """One prompt. `json_schema` asks for structured output; another `attempt` is another purchase."""

    system: str
    user: str
    json_schema: dict[str, Any] | None = None
    attempt: int = 0


@dataclass(frozen=True)
class Exchange:
    """One call: what came of it, the body the server sent, when it began (monotonic) and how long it took.

    `billed`: a provider may want money for it.
    """

    verdict: Verdict
    raw: str
    began: float
    seconds: float
    billed: bool


class Http:
    """Connections to the servers of one endpoint, with the key they send; made by `open_http`.

    Each call in flight has a client of its own: a client's pool looks at all its connections for every
    call, which at 64 in flight takes more time than everything else.
    """

    def __init__(self, endpoint: Endpoint, timeout_seconds: float, opened: AsyncExitStack) -> None:
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self.key = read_key(endpoint)
        self._opened = opened
        self._idle: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lend a client that no other call has."""
        client = self._idle.pop() if self._idle else await self._opened.enter_async_context(self._new())
        try:
            yield client
        finally:
            self._idle.append(client)

    def _new(self) -> httpx.AsyncClient:
        secret = self.key.get_secret_value()
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.AsyncClient(headers=headers, timeout=self.timeout_seconds, verify=_tls())


def read_key(endpoint: Endpoint) -> SecretStr:
    """Return the API key, empty where none is configured. Raises UserError naming the variable, never its value."""
    if not endpoint.api_key_env:
        return SecretStr("")
    key = os.environ.get(endpoint.api_key_env, "").strip()
    if not key:
        raise UserError(
            f"LLM server '{endpoint.name}': environment variable {endpoint.api_key_env} (api_key_env) is not set:"
            " export it with the API key, or leave api_key_env empty for a server without keys"
        )
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"LLM server '{endpoint.name}': environment variable {endpoint.api_key_env} holds characters"
            " that no API key has: export it again without line breaks"
        )
    return SecretStr(key)


def chat_url(endpoint: Endpoint, base_url: str) -> str:
    """Return the address of the chat call. Raises UserError for a base URL that carries a secret or a query."""
    parts = re.match(r"^(https?)://([^/?#]*)([^?#]*)([?#].*)?$", base_url)
    if not parts or not parts[2] or "@" in parts[2] or parts[4]:
        raise UserError(
            f"LLM server '{endpoint.name}': base_url must be http(s)://host[:port]/path without user, password"
            " or query: put the key into the environment variable that api_key_env names"
        )
    return base_url.rstrip("/") + "/chat/completions"


def hide(text: str, key: SecretStr) -> str:
    """Return `text` without the key."""
    secret = key.get_secret_value()
    return text.replace(secret, "***") if len(secret) >= _SHORTEST_SECRET else text


def chat_body(endpoint: Endpoint, request: ChatRequest, with_schema: bool = True) -> dict[str, Any]:
    """Return the JSON of a chat call, all sampling parameters explicit, the schema where the server knows schemas."""
    system = [{"role": "system", "content": request.system}] if request.system else []
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [*system, {"role": "user", "content": request.user}],
        "temperature": endpoint.temperature,
        "top_p": endpoint.top_p,
        "max_tokens": endpoint.max_tokens,
    }
    if with_schema and request.json_schema is not None:
        schema = {"name": "reply", "schema": request.json_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


@asynccontextmanager
async def open_http(endpoint: Endpoint, most_seconds: float = float("inf")) -> AsyncIterator[Http]:
    """Open connections for one endpoint; raises UserError where its key is missing."""
    async with AsyncExitStack() as opened:
        yield Http(endpoint, min(endpoint.timeout_seconds, most_seconds), opened)


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reads all root certificates, some 50 ms: once a process


async def post(http: Http, base_url: str, body: dict[str, Any]) -> Exchange:
    """Make one call; the key is taken out of what the server sent."""
    url = chat_url(http.endpoint, base_url)
    started = time.monotonic()
    try:
        # httpx limits the time between two bytes; a server that trickles needs a limit on the whole call.
        async with (
            http.client() as client,
            asyncio.timeout(http.timeout_seconds),
            client.stream("POST", url, json=body) as response,
        ):
            raw = hide(await _read(response), http.key)
    except (TimeoutError, httpx.TimeoutException) as error:
        return _failed(f"no reply within {http.timeout_seconds:g} s", error, started)
    except (httpx.TransportError, httpx.DecodingError) as error:
        return _failed(hide(transport_reason(error), http.key), error, started)
    verdict = judge_response(
        http.endpoint, base_url, response.status_code, response.headers, raw, "response_format" in body
    )
    return Exchange(verdict, raw, started, time.monotonic() - started, response.status_code == httpx.codes.OK)


def _failed(reason: str, error: Exception, started: float) -> Exchange:
    """Return what a call without a response came to; the server may bill it unless it never saw it."""
    failed = Failed(reason, retry=True, overload=True)
    return Exchange(failed, "", started, time.monotonic() - started, billed=not isinstance(error, _UNSENT))


async def _read(response: httpx.Response) -> str:
    """Return the body as text (JSON is UTF-8, RFC 8259). Raises DecodingError for one without an end."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _LONGEST_BODY:
            raise httpx.DecodingError(f"a body of over {_LONGEST_BODY >> 20} MiB")
    return body.decode("utf-8", "replace")
