"""Prompts from templates and untrusted text: substitution that reads nothing but its own template."""

import re
from collections.abc import Mapping
from functools import lru_cache

from iar.errors import PermanentError

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_ESCAPE = re.compile(r"&((?:amp;)*lt;)")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each {{name}} replaced, in one pass: braces inside a value stay as they are.

    Raises PermanentError where names and values do not match: a prompt with a hole costs money.
    """
    parts = list(_parts(template))
    if (places := set(parts[1::2])) != set(values):
        raise PermanentError(f"prompt template has the places {sorted(places)}, the values are {sorted(values)}")
    parts[1::2] = [values[place] for place in parts[1::2]]
    return "".join(parts)


@lru_cache(maxsize=64)  # a template is filled thousands of times
def _parts(template: str) -> tuple[str, ...]:
    """Return a template's text and the names of its places in turn."""
    return tuple(_PLACE.split(template))


def fence(text: str, tag: str) -> str:
    """Return untrusted text between <tag> and </tag>; no text can close the fence, for its "<" are escaped."""
    # An escape that the text has of its own gets one "amp;" more, so that `unfence` can tell it.
    escaped = _ESCAPE.sub(r"&amp;\1", text) if "&" in text else text
    escaped = escaped.replace("<", "&lt;")
    return f"<{tag}>\n{escaped}\n</{tag}>"


def unfence(text: str) -> str:
    """Return what a model took over from fenced text as it stood before it was escaped."""
    return _ESCAPE.sub(lambda escape: "<" if escape[1] == "lt;" else "&" + escape[1].removeprefix("amp;"), text)
