"""Which part of a rotating set of questions a day asks, from the day alone: no clock, no chance."""

from collections.abc import Sequence
from datetime import date

from iar.methods.digest import digest_text


def part_on(day: date, parts: int, every_days: int) -> int:
    """Return the part, from 0, whose turn it is: each has `every_days` days, counted from 0001-01-01."""
    return day.toordinal() // every_days % parts


def places_of(part: int, parts: int, texts: Sequence[str]) -> list[int]:
    """Return the places of the texts of a part, in order: parts are equal to one text, and alike in kind.

    The order in which texts are dealt out is that of their digests, which says nothing about them.
    """
    dealt = sorted(range(len(texts)), key=lambda place: (digest_text(texts[place]), place))
    return sorted(dealt[part::parts])
