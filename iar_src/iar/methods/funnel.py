"""The account of the QA build: nothing vanishes without a reason."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from iar.errors import PermanentError
from iar.methods.inert_markdown import inert
from iar.records import OUTCOMES, FunnelStep


def check_funnel(funnel: Sequence[FunnelStep], recorded: Mapping[tuple[str, str], int]) -> None:
    """Raise PermanentError unless, at each step, in == kept + dropped and each drop is on record.

    recorded: the number of rejects by (step, reason). Dropped is filtered + duplicate + contaminated + failed. Where
    two neighbouring steps count the same unit, the second must begin with what the first kept.
    """
    for step in funnel:
        for dropped in (step.dropped, step.outcomes):
            if step.in_ != step.kept + sum(dropped.values()):
                raise PermanentError(f"funnel step {step.step}: {step.in_} in, {step.kept} kept, {dropped} dropped")
        for reason, count in step.dropped.items():
            if recorded.get((step.step, reason), 0) != count:
                raise PermanentError(f"funnel step {step.step}: {count} dropped as {reason!r}, other number on record")
    for step, following in pairwise(funnel):
        if step.unit == following.unit and step.kept != following.in_:
            raise PermanentError(f"funnel: {step.step} kept {step.kept}, {following.step} began with {following.in_}")


def add_up(funnels: Iterable[Sequence[FunnelStep]]) -> list[FunnelStep]:
    """Return the account of several parts of one work together, its steps in their order."""
    total: dict[str, FunnelStep] = {}
    for step in (step for funnel in funnels for step in funnel):
        before = total.get(step.step, FunnelStep(step.step, step.unit, 0, 0, {}))
        total[step.step] = FunnelStep(
            step.step, step.unit, before.in_ + step.in_, before.kept + step.kept,
            _sums(before.dropped, step.dropped), _sums(before.outcomes, step.outcomes),
        )  # fmt: skip
    return list(total.values())


def _sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def funnel_table(funnel: Iterable[FunnelStep]) -> str:
    """Return the funnel as a Markdown table: counts, shares of what came in, reasons."""
    rows = [
        f"| step | unit | in | kept | {' | '.join(OUTCOMES)} | reasons |",
        f"| --- | --- | ---: | ---: |{' ---: |' * len(OUTCOMES)} --- |",
    ]
    for step in funnel:
        counts = [step.kept, *(step.outcomes.get(outcome, 0) for outcome in OUTCOMES)]
        shown = [f"{count} ({count / step.in_:.1%})" if count and step.in_ else str(count) for count in counts]
        reasons = ", ".join(f"{inert(reason)} {count}" for reason, count in step.dropped.items())
        rows.append(f"| {step.step} | {step.unit} | {step.in_} | {' | '.join(shown)} | {reasons} |")
    return "\n".join(rows)
