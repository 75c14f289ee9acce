"""Tasks of lm-eval: its own prompts, filters and metrics around the replies of this package's engine."""

import logging
from functools import cache
from typing import Any

from iar.errors import UserError
from iar.records import EvalItem

LM_EVAL = "lm-eval"
MAX_GEN_TOKENS = 256
"""What lm-eval's models write where a task sets no limit."""


def task_items(name: str, limit: int | None) -> list[EvalItem]:
    """Return the items of a task, by its name or the path of a YAML in lm-eval's format; `limit` = the first so many.

    Raises UserError for a task that is not there, or that asks for likelihoods, sampling or several replies.
    """
    task = _task(name, limit)
    items = []
    for instance in task.instances:
        context, settings = instance.args[:2]
        limit_tokens = int(settings.get("max_gen_toks") or MAX_GEN_TOKENS)
        reference = {"verifier": LM_EVAL, "task": name, "limit": limit, "document": instance.doc_id}
        items.append(EvalItem(f"{task.task_name}-{instance.doc_id}", task.task_name, context, limit_tokens, reference))
    return items


def task_prompts(name: str, limit: int | None) -> list[tuple[str, str]]:
    """Return id and question of each item, without the examples that a prompt may begin with."""
    task = _task(name, limit)
    return [(str(instance.doc_id), str(task.doc_to_text(instance.doc))) for instance in task.instances]


def grade_task_reply(reference: dict[str, Any], reply: str) -> float:
    """Return the score of a reply by the task's first filter and metric, in [0, 1].

    Raises UserError for a metric that is no number an item.
    """
    task = _task(reference["task"], reference["limit"])
    instance = next(one for one in task.instances if one.doc_id == reference["document"])
    until = instance.args[1].get("until") or []
    for stop in [until] if isinstance(until, str) else until:
        reply = reply.split(stop)[0] if stop else reply
    instance.resps = [reply]
    first = task._filters[0]
    first.apply([instance])
    metrics = task.process_results(instance.doc, [instance.filtered_resps[first.name]])
    metric, value = next(iter(metrics.items()))
    if not isinstance(value, bool | int | float):
        raise UserError(
            f"evaluate.lm_eval: {task.task_name}: metric {metric} is no number an item but a {type(value).__name__}; "
            "take a task with a metric such as exact_match"
        )
    return min(1.0, max(0.0, float(value)))


@cache
def _task(name: str, limit: int | None) -> Any:
    """Load a task and build its requests; its documents may come from the hub."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    try:
        found = list(TaskManager().load(name)["tasks"].values())
    except KeyError as error:
        raise UserError(
            f"evaluate.lm_eval: {name!r} is neither a task of lm-eval nor a task file; lm-eval ls tasks lists them"
        ) from error
    except (OSError, ValueError, ImportError, ConnectionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"evaluate.lm_eval: cannot load {name}: {reason}; check name, packages and network") from error
    if len(found) != 1:
        raise UserError(f"evaluate.lm_eval: {name} is a group of {len(found)} tasks; name its tasks one by one")
    task = found[0]
    _check(name, task)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    return task


def _check(name: str, task: Any) -> None:
    settings = task.config.generation_kwargs or {}
    reasons = {
        f"is of kind {task.OUTPUT_TYPE}": task.OUTPUT_TYPE != "generate_until",
        "samples its replies": bool(settings.get("do_sample") and float(settings.get("temperature", 1)) > 0),
        f"wants {task.config.repeats} replies a prompt": (task.config.repeats or 1) > 1,
    }
    for reason, found in reasons.items():
        if found:
            raise UserError(
                f"evaluate.lm_eval: {name} {reason}; models answer with one greedy reply here: take a generate_until "
                "task, or run lm-eval by itself"
            )
