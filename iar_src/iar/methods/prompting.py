"""Prompts from templates and untrusted text: substitution that reads nothing but its own template."""

import re
from collections.abc import Mapping

from iar.errors import PermanentError

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_ESCAPE = re.compile(r"&((?:amp;)*lt;)")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each {{name}} replaced, in one pass: braces inside a value stay as they are.

    Raises PermanentError where names and values do not match: a prompt with a hole costs money.
    """
    places = set(_PLACE.findall(template))
    if places != set(values):
        raise PermanentError(f"prompt template has the places {sorted(places)}, the values are {sorted(values)}")
    return _PLACE.sub(lambda place: values[place[1]], template)


def fence(text: str, tag: str) -> str:
    """Return untrusted text between <tag> and </tag>; no text can close the fence, for its "<" are escaped."""
    # An escape that the text has of its own gets one "amp;" more, so that `unfence` can tell it.
    escaped = _ESCAPE.sub(r"&amp;\1", text).replace("<", "&lt;")
    return f"<{tag}>\n{escaped}\n</{tag}>"


def unfence(text: str) -> str:
    """Return what a model took over from fenced text as it stood before it was escaped."""
    return _ESCAPE.sub(lambda escape: "<" if escape[1] == "lt;" else "&" + escape[1].removeprefix("amp;"), text)
