"""JSON objects in what a language model wrote: fenced, among other words, or cut off."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MOST_REPAIRS = 16
_LITERALS = ("true", "false", "null")
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True)
class FoundObjects:
    """The JSON objects in a text, in order, and the text around them."""

    objects: list[dict[str, Any]]
    rest: str


def after_thinking(text: str) -> str:
    """Return what follows a reasoning model's thoughts; nothing does where they were cut off: drafts are no reply."""
    _, ended, reply = text.rpartition("</think>")
    return "" if not ended and reply.lstrip().startswith("<think>") else reply


def find_objects(text: str) -> FoundObjects:
    """Return the outermost complete JSON objects of `text` (RFC 8259; NaN and infinities are no JSON)."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    objects: list[dict[str, Any]] = []
    rest: list[str] = []
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
            objects.append(value)
            rest.append(text[position:start])
        except (ValueError, RecursionError):
            end = start + 1
            rest.append(text[position:end])
        position = end
    return FoundObjects(objects, "".join(rest) + text[position:])


def repairs(text: str) -> Iterator[dict[str, Any]]:
    """Yield what a cut-off JSON object says without its last, incomplete parts: the longest first.

    A number at the cut and a string without its end are dropped, never guessed. At most 16 cuts are tried.
    """
    start = text.find("{")
    if start < 0:
        return
    for end, closers in reversed(_cuts(text, start)[-_MOST_REPAIRS:]):
        try:
            value = json.loads(text[start:end] + closers, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        yield value


def _cuts(text: str, start: int) -> list[tuple[int, str]]:
    """Return the places where a value is complete, each with the brackets that are open there."""
    open_brackets: list[str] = []
    cuts: list[tuple[int, str]] = []
    in_string = escaped = False
    for position in range(start, len(text)):
        character = text[position]
        if in_string:
            in_string = escaped or character != '"'
            if not in_string:
                cuts.append((position + 1, "".join(reversed(open_brackets))))
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            open_brackets.append(_CLOSERS[character])
        elif character in "}]" and (not open_brackets or open_brackets.pop() != character):
            return []
        elif character in "el" and any(text.endswith(literal, start, position + 1) for literal in _LITERALS):
            cuts.append((position + 1, "".join(reversed(open_brackets))))
        if not in_string and character in "}],":
            end = position if character == "," else position + 1
            cuts.append((end, "".join(reversed(open_brackets))))
    return cuts


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
