"""Ask a chat server for replies of a given form: read each tolerantly, ask again within bounds."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Generic, TypeVar

from iar.config import USER_LINE
from iar.methods.digest import digest_text
from iar.services.llm import ChatClient, ChatReply, ChatRequest

READ_ATTEMPTS = 3  # a model that misses the form three times will miss it again
_REMINDER = "\n\nYour earlier reply could not be read. Reply with the JSON object alone, complete and short."

Value = TypeVar("Value")


@dataclass(frozen=True)
class Prompt:
    """A prompt file: system text, user template, and the first 12 digits of the file's SHA-256."""

    system: str
    user: str
    version: str


@dataclass(frozen=True)
class Asked(Generic[Value]):
    """What came of a question: the value read, or None with `error`; `raw` is the last reply.

    Tokens and seconds are of all attempts, by the server's count.
    """

    value: Value | None
    raw: str
    error: str
    attempts: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


@cache
def load_prompt(name: str) -> Prompt:
    """Return the prompt file `name` of this package."""
    return read_prompt((resources.files("iar") / "prompts" / f"{name}.txt").read_text(encoding="utf-8"))


def read_prompt(text: str) -> Prompt:
    """Return a prompt from the text of its file."""
    system, _, user = text.partition(USER_LINE)
    return Prompt(system.strip(), user.strip(), digest_text(text)[:12])


def ask(
    client: ChatClient,
    requests: Sequence[ChatRequest],
    read: Callable[[str], Value],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Asked[Value]]:
    """Return one result a request, in order. `read` raises ValueError, with the reason, for an unreadable reply."""
    asked: list[Asked[Value]] = [Asked(None, "", "not asked", 0)] * len(requests)
    pending = list(range(len(requests)))
    for attempt in range(READ_ATTEMPTS):
        again = [_once_more(requests[index], attempt) for index in pending]
        replies = client.complete(again, on_progress if attempt == 0 else None)
        for index, reply in zip(pending, replies, strict=True):
            asked[index] = _after(asked[index], reply, read)
        pending = [index for index in pending if asked[index].value is None]
        if not pending:
            break
    return asked


def _once_more(request: ChatRequest, attempt: int) -> ChatRequest:
    if attempt == 0:
        return request
    return dataclasses.replace(request, user=request.user + _REMINDER, attempt=attempt)


def _after(before: Asked[Value], reply: ChatReply, read: Callable[[str], Value]) -> Asked[Value]:
    """Return what has come of a question with one more reply to it."""
    value, error = None, reply.error
    if not error:
        try:
            value = read(reply.text)
        except ValueError as unreadable:
            error = f"unreadable reply: {unreadable}"
    return Asked(
        value,
        reply.text,
        error,
        before.attempts + 1,
        before.prompt_tokens + reply.prompt_tokens,
        before.completion_tokens + reply.completion_tokens,
        before.seconds + reply.seconds,
    )
