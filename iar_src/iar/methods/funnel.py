"""The account of the QA build: nothing vanishes without a reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from iar.errors import PermanentError
from iar.records import FunnelStep, Reject


def check_funnel(funnel: Sequence[FunnelStep], rejects: Iterable[Reject]) -> None:
    """Raise PermanentError unless, at each step, in == kept + dropped and each drop is on record.

    Where two neighbouring steps count the same unit, the second must begin with what the first kept.
    """
    recorded = Counter((reject.step, reject.reason) for reject in rejects)
    for step in funnel:
        if step.in_ != step.kept + sum(step.dropped.values()):
            raise PermanentError(f"funnel step {step.step}: {step.in_} in, {step.kept} kept, {step.dropped} dropped")
        for reason, count in step.dropped.items():
            if recorded[step.step, reason] != count:
                raise PermanentError(f"funnel step {step.step}: {count} dropped as {reason!r}, other number on record")
    for step, following in pairwise(funnel):
        if step.unit == following.unit and step.kept != following.in_:
            raise PermanentError(f"funnel: {step.step} kept {step.kept}, {following.step} began with {following.in_}")


def funnel_table(funnel: Iterable[FunnelStep]) -> str:
    """Return the funnel as a Markdown table."""
    rows = ["| step | unit | in | kept | dropped |", "| --- | --- | ---: | ---: | --- |"]
    for step in funnel:
        dropped = ", ".join(f"{reason} {count}" for reason, count in step.dropped.items())
        rows.append(f"| {step.step} | {step.unit} | {step.in_} | {step.kept} | {dropped} |")
    return "\n".join(rows)
