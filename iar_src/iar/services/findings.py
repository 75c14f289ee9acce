"""Findings of the doctor: what was looked at, how it stands, and the fix."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iar.errors import IarError


@dataclass(frozen=True)
class Check:
    """One finding. `status` is pass, warn or fail; `fix` is what to do about a warn or a fail."""

    name: str
    status: str
    detail: str
    fix: str = ""


def guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    """Yield the check's finding; an expected error becomes a failed one."""
    try:
        yield check()
    except IarError as error:
        yield Check(name, "fail", str(error))
