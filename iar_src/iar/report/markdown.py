"""Markdown around text that is not ours: whatever stands in a value is shown and never obeyed."""

import re
from collections.abc import Iterable, Sequence

from iar.methods.inert_markdown import inert
from iar.report.html import visible


def plain(text: str) -> str:
    """Return `text` in one line that no renderer takes for markup."""
    return inert(visible(text))


def code(text: str) -> str:
    """Return `text` as a code span, in which no link, mention or markup is alive; fit for a table."""
    shown = _one_line(text).replace("|", "\\|") or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """Return `text` as a code block of its own."""
    shown = "\n".join(map(visible, text.splitlines()))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of ready cells as a table, the first column to the left and the others to the right."""
    head = [f"| {' | '.join(titles)} |", "| --- |" + " ---: |" * (len(titles) - 1)]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
