"""The cost of a run as rows that commands and comments show: the estimate, and the actual figures beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from iar.services.cost import Estimate
from iar.services.cost_actuals import Actual

TITLES = ("Task", "Tokens", "PFLOP", "GPU-hours", "LLM tokens")
ACTUAL_TITLES = ("Took", "Tokens, actual", "GPU-hours, actual", "LLM tokens, actual")


def titles(done: Mapping[str, Actual]) -> tuple[str, ...]:
    """Return the titles of the table."""
    return TITLES + (ACTUAL_TITLES if done else ())


def rows(cost: Estimate, done: Mapping[str, Actual]) -> list[list[str]]:
    """Return a row a task and the total; the actual figures where any task is finished."""
    lines = [
        [one.task, _whole(one.tokens), _peta(one.flops), _hours(one.gpu_hours), _whole(one.llm_tokens)]
        for one in cost.tasks
    ]
    if done:
        lines = [line + _actual(done.get(line[0])) for line in lines]
    return [*lines, _total(cost, done)]


def cost_json(cost: Estimate, done: Mapping[str, Actual]) -> dict[str, Any]:
    """Return estimate and actual figures as JSON data, with the totals."""
    tasks = [
        {"task": one.task, "estimate": _without_task(asdict(one)), "actual": _maybe(done.get(one.task))}
        for one in cost.tasks
    ]
    about = {"run_id": cost.run_id, "device": cost.device, "peak_flops": cost.peak_flops, "counted": cost.counted}
    return about | {"tasks": tasks, "total": _sums(cost), "assumptions": list(cost.assumptions)}


def headline(cost: Estimate) -> str:
    """Return the cost in one line."""
    sums = _sums(cost)
    hours = f"{_hours(sums['gpu_hours'])} GPU-hours on {cost.device}"
    bought = f", {_whole(sums['llm_tokens'])} tokens of teacher and judges" if sums["llm_tokens"] else ""
    return f"About {hours}{bought}"


def _sums(cost: Estimate) -> dict[str, Any]:
    hours = [one.gpu_hours for one in cost.tasks if one.gpu_hours is not None]
    return {
        "tokens": sum(one.tokens for one in cost.tasks),
        "flops": sum(one.flops for one in cost.tasks),
        "gpu_hours": None if cost.peak_flops is None else sum(hours),
        "llm_tokens": sum(one.llm_tokens for one in cost.tasks),
    }


def _total(cost: Estimate, done: Mapping[str, Actual]) -> list[str]:
    sums = _sums(cost)
    line = [
        "total",
        _whole(sums["tokens"]),
        _peta(sums["flops"]),
        _hours(sums["gpu_hours"]),
        _whole(sums["llm_tokens"]),
    ]
    if not done:
        return line
    shown = [done[one.task] for one in cost.tasks if one.task in done]
    hours = [one.gpu_hours for one in shown if one.gpu_hours is not None]
    whole = Actual(
        sum(one.seconds for one in shown), sum(hours) if hours else None, sum(one.tokens for one in shown),
        sum(one.llm_tokens for one in shown), sum(one.llm_money for one in shown), reused=False,
    )  # fmt: skip
    return line + _actual(whole)


def _actual(one: Actual | None) -> list[str]:
    if one is None:
        return ["", "", "", ""]
    took = f"{one.seconds / 3600:.2f} h" + " (reused)" * one.reused
    paid = f" for {one.llm_money:,.2f}" if one.llm_money else ""
    return [took, _whole(one.tokens), _hours(one.gpu_hours), _whole(one.llm_tokens) + paid]


def _maybe(one: Actual | None) -> dict[str, Any] | None:
    return asdict(one) if one else None


def _without_task(cost: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cost.items() if name != "task"}


def _whole(number: float) -> str:
    return f"{number:,.0f}" if number else "-"


def _peta(flops: float) -> str:
    return _short(flops / 1e15)


def _hours(hours: float | None) -> str:
    return _short(hours or 0.0)


def _short(number: float) -> str:
    """Return a number in three digits: an estimate has no more."""
    return "-" if not number else f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def lines_of(cost: Estimate) -> Sequence[str]:
    """Return what the estimate rests on, a line each."""
    return [f"Assumed: {one}" for one in cost.assumptions]
