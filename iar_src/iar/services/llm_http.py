"""One call to an OpenAI-compatible chat server.

The API key is read from its environment variable for each client and stands in no record, log line
or error text: what a server sends is cleaned of it before anybody reads it.
"""

import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from pydantic import SecretStr

from iar.config import Endpoint
from iar.errors import UserError
from iar.methods.digest import canonical_json
from iar.services.llm_answers import Failed, Verdict, judge_response, transport_reason

_LONGEST_BODY = 32 << 20  # bytes; the longest replies of any model are a few hundred thousand
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)  # no server has seen the call
_CONNECT_SECONDS = 30.0
_HIGHEST_PORT = 65535
_SHORTEST_SECRET = 8  # a placeholder such as "EMPTY" is no secret, and may well occur in a reply


@dataclass(frozen=True)
class ChatRequest:
    """One prompt. `json_schema` asks for structured output; another `attempt` is another purchase."""

    system: str
    user: str
    json_schema: dict[str, Any] | None = None
    attempt: int = 0


@dataclass(frozen=True)
class CompletionRequest:
    """One prompt as token ids, no template of the server's applied, and what ends the text that goes on from it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    seed: int
    attempt: int = 0


Request = ChatRequest | CompletionRequest


@dataclass(frozen=True)
class Body:
    """What one call sends: canonical JSON, written once for the cache's key, the server and the archive.

    `path` follows the base URL; `max_tokens` is the longest reply that it asks for.
    """

    text: str
    path: str
    max_tokens: int
    has_schema: bool


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


@dataclass(frozen=True)
class Http:
    """An open connection pool to the servers of one endpoint, with the key it sends; made by `open_http`.

    `addresses` are where calls go, without their paths, by base URL.
    """

    endpoint: Endpoint
    addresses: Mapping[str, str]
    key: SecretStr
    session: aiohttp.ClientSession
    timeout_seconds: float


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


def address(endpoint: Endpoint, base_url: str) -> str:
    """Return a base URL ready for a path behind it. Raises UserError for one that carries a secret or a query."""
    parts = re.match(
        r"^(https?)://(?P<host>[^/?#:@\s]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?(/[^?#\s]*)?$", base_url
    )
    if not parts or int(parts["port"] or 0) > _HIGHEST_PORT:
        raise UserError(
            f"LLM server '{endpoint.name}': base_url must be http(s)://host[:port]/path without user, password"
            " or query: put the key into the environment variable that api_key_env names"
        )
    return base_url.rstrip("/")


def hide(text: str, key: SecretStr) -> str:
    """Return `text` without the key."""
    secret = key.get_secret_value()
    return text.replace(secret, "***") if len(secret) >= _SHORTEST_SECRET else text


def call_body(endpoint: Endpoint, request: Request, with_schema: bool = True) -> Body:
    """Return what a call of either kind sends, the schema where the server knows schemas."""
    if isinstance(request, ChatRequest):
        fields = _chat(endpoint, request, with_schema)
    else:
        fields = _completion(endpoint, request)
    path = "/chat/completions" if "messages" in fields else "/completions"
    return Body(canonical_json(fields), path, fields["max_tokens"], "response_format" in fields)


def _chat(endpoint: Endpoint, request: ChatRequest, with_schema: bool) -> dict[str, Any]:
    """Return the fields of a chat call, all sampling parameters explicit."""
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


def _completion(endpoint: Endpoint, request: CompletionRequest) -> dict[str, Any]:
    return {
        "model": endpoint.model,
        "prompt": list(request.prompt_ids),
        "temperature": endpoint.temperature,
        "top_p": endpoint.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        # Of vLLM and SGLang; other servers leave it aside and stop at the model's own end tokens.
        "stop_token_ids": list(request.stop_ids),
    }


@asynccontextmanager
async def open_http(endpoint: Endpoint, most_seconds: float = float("inf")) -> AsyncIterator[Http]:
    """Open connections for one endpoint; raises UserError where its key is missing or a base URL carries a secret."""
    key = read_key(endpoint)
    addresses = {base_url: address(endpoint, base_url) for base_url in endpoint.base_urls}
    secret = key.get_secret_value()
    seconds = min(endpoint.timeout_seconds, most_seconds)
    # The calls in flight are limited elsewhere; a limit on the whole call ends one that trickles, too.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=_tls()),
        headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {}),
        timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, _CONNECT_SECONDS)),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield Http(endpoint, addresses, key, session, seconds)


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # roots as everywhere else in this package; read once, some 50 ms


@cache
def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for an address (HTTPS_PROXY and its companions), if any."""
    parts = urlsplit(url)
    proxies = getproxies()
    return None if proxy_bypass(parts.hostname or "") else proxies.get(parts.scheme, proxies.get("all"))


async def post(http: Http, base_url: str, body: Body) -> Exchange:
    """Make one call; the key is taken out of what the server sent."""
    url = http.addresses[base_url] + body.path
    started = time.monotonic()
    try:
        sent = body.text.encode()
        async with http.session.post(url, data=sent, proxy=_proxy(url), allow_redirects=False) as response:
            raw = hide(await _read(response), http.key)
    except TimeoutError as error:
        return _failed(f"no reply within {http.timeout_seconds:g} s", error, started)
    except aiohttp.ClientError as error:
        return _failed(hide(transport_reason(error), http.key), error, started)
    verdict = judge_response(http.endpoint, base_url, response.status, response.headers, raw, body.has_schema)
    return Exchange(verdict, raw, started, time.monotonic() - started, billed=response.status == 200)


def _failed(reason: str, error: Exception, started: float) -> Exchange:
    """Return what a call without a response came to; the server may bill it unless it never saw it."""
    failed = Failed(reason, retry=True, overload=True)
    return Exchange(failed, "", started, time.monotonic() - started, billed=not isinstance(error, _UNSENT))


async def _read(response: aiohttp.ClientResponse) -> str:
    """Return the body as text (JSON is UTF-8, RFC 8259). Raises ClientPayloadError for one without an end."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > _LONGEST_BODY:
            raise aiohttp.ClientPayloadError(f"a body of over {_LONGEST_BODY >> 20} MiB")
    return body.decode("utf-8", "replace")
