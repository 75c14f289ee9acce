"""Text that is not ours, such as a file's name in a reason, in Markdown that a browser may show."""

import re

_ACTIVE = re.compile(r"([\\`*_\[\]<>&|~#!$])")


def inert(text: str) -> str:
    """Return `text` in one line, its marks escaped so that no renderer takes any for markup or the end of a cell."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split()))
