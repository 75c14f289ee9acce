"""What an OpenAI-compatible server's answer to one call means, in our own types and words."""

import email.utils
import json
import math
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iar.config import Endpoint
from iar.errors import UserError

_MOST_TOKENS = 10**9  # of one call; a larger count is a fault of the server
_RETRIED = frozenset({408, 409, 425})
# The server, or a gateway before it, has no room: fewer calls may help (529 is in use for "overloaded").
_OVERLOADED = frozenset({502, 503, 504, 529})
# Refusals of this one prompt, not of the endpoint or the settings: the row fails, the run goes on.
_ROW_REFUSALS = re.compile(r"context[ _](length|size|window)|content_filter", re.IGNORECASE)
# What servers without structured output write about a request for it; 501 and 422 are in use beside 400.
_NO_SCHEMA = re.compile(r"response_?format|json_?schema|structured|guided", re.IGNORECASE)


@dataclass(frozen=True)
class Answered:
    """A usable reply: its text, what it cost, and whether the limit on its length ended it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    truncated: bool = False


@dataclass(frozen=True)
class Refused:
    """Too many calls (429): wait `wait_seconds`, or as the back-off says where the server is silent."""

    wait_seconds: float | None


@dataclass(frozen=True)
class SchemaRefused:
    """The server knows no structured output: ask again without the schema and read the reply with care."""


@dataclass(frozen=True)
class Failed:
    """No reply; `retry` tells whether another try may help, `overload` whether fewer calls may."""

    reason: str
    retry: bool
    wait_seconds: float | None = None
    overload: bool = False


Verdict = Answered | Refused | SchemaRefused | Failed


def one_line(text: str, most: int = 200) -> str:
    """Return foreign text fit for one error line: printable, single-spaced, at most `most` characters."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def retry_after(header: str | None) -> float | None:
    """Return the seconds a Retry-After header asks for: a number or an HTTP date (RFC 9110, 10.2.3)."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def transport_reason(error: BaseException) -> str:
    """Return in a few words why no response came, from the chain of causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror):
            return "host name unknown"
        cause = cause.__cause__ or cause.__context__
    return one_line(f"{type(error).__name__}: {error}", 120)


def judge_response(
    endpoint: Endpoint, base_url: str, status: int, headers: Mapping[str, str], body: str, with_schema: bool
) -> Verdict:
    """Return what one response means. Raises UserError where only the user can help (most of 4xx)."""
    wait = retry_after(headers.get("Retry-After"))
    if status == 200:
        return read_completion(body)
    if status == 429 and "insufficient_quota" not in body:
        return Refused(wait)
    if status in (400, 413, 422) and _ROW_REFUSALS.search(body):
        return Failed(f"HTTP {status}: {_server_message(body)}", retry=False)
    if with_schema and status in (400, 404, 422, 501) and _NO_SCHEMA.search(body):
        return SchemaRefused()
    if status >= 500 or status in _RETRIED:
        reason = f"HTTP {status}: {_server_message(body)}"
        return Failed(reason, retry=True, wait_seconds=wait, overload=status in _OVERLOADED)
    raise UserError(
        f"LLM server '{endpoint.name}' at {base_url} answered HTTP {status}{_said(status, body)}: "
        f"{_fix(endpoint, status)}"
    )


def read_completion(body: str) -> Verdict:
    """Return the reply in the body of a chat or a plain completion, or why there is none.

    A chat that says nothing has failed; what a plain prompt is completed by may well be nothing.
    """
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        is_chat = "message" in choice
        text = _text_of(choice["message"]["content"] if is_chat else choice["text"])
        reason = one_line(str(choice.get("finish_reason")), 40)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return Failed(f"not a chat completion: {one_line(body, 80)}", retry=True)
    if is_chat and not text.strip():
        return Failed(f"empty reply (finish_reason {reason}); a larger max_tokens may help", retry=False)
    readable = text.encode("utf-8", "replace").decode()  # JSON may smuggle in half a surrogate pair
    prompt_tokens, completion_tokens = _counts(data)
    return Answered(readable, prompt_tokens or 0, completion_tokens or 0, truncated=reason == "length")


def _text_of(content: object) -> str:
    """Return a message's text: null is none, a list is of parts. Raises TypeError for anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    raise TypeError(f"content is a {type(content).__name__}")


def read_usage(body: str) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and reply that a body says it cost, None for a count that it does not give."""
    try:
        return _counts(json.loads(body))
    except (ValueError, RecursionError):
        return None, None


def _counts(data: object) -> tuple[int | None, int | None]:
    usage = data.get("usage") if isinstance(data, dict) else None
    given = [usage.get("prompt_tokens"), usage.get("completion_tokens")] if isinstance(usage, dict) else [None, None]
    prompt, completion = (count if type(count) is int and 0 <= count < _MOST_TOKENS else None for count in given)
    return prompt, completion


def _server_message(body: str) -> str:
    try:
        data: Any = json.loads(body)
        message = data["error"]["message"] if isinstance(data["error"], dict) else data["error"]
    except (ValueError, KeyError, TypeError):
        message = body
    return one_line(str(message))


def _said(status: int, body: str) -> str:
    # Servers repeat parts of a wrong key in these two answers.
    return "" if status in (401, 403) or not body.strip() else f" ({_server_message(body)})"


def _fix(endpoint: Endpoint, status: int) -> str:
    key = f"environment variable {endpoint.api_key_env}" if endpoint.api_key_env else "api_key_env (now empty)"
    if status == 401:
        fix = f"put a valid API key into {key}"
        return fix if endpoint.api_key_env else f"name the environment variable of the API key in {key}"
    fixes = {
        402: "the account is out of credit",
        403: f"the key in {key} may not use model '{endpoint.model}'",
        404: f"check base_url and model '{endpoint.model}'",
        429: "the account's quota is used up; raise it, then run again",
    }
    if 300 <= status < 400:
        return "base_url redirects; write the final address"
    return fixes.get(status, f"check model '{endpoint.model}', max_tokens and the other settings of the endpoint")
