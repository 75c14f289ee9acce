"""What is asked beside the suites that count: suites of the user, tasks of lm-eval."""

from collections.abc import Iterator
from pathlib import Path

from iar.config import RunFile
from iar.methods.suite_grading import grade_reply
from iar.records import EvalItem, Reply
from iar.services.lm_eval_tasks import LM_EVAL, grade_task_reply, task_items
from iar.services.user_suites import user_items


def further_items(run_file: RunFile) -> Iterator[tuple[str, list[EvalItem]]]:
    """Yield each suite with where it is from. Raises UserError where one is missing or malformed."""
    settings = run_file.evaluate
    for place in settings.suites:
        yield place, user_items(Path(place), settings.day)
    for name in settings.lm_eval:
        yield name, task_items(name, settings.lm_eval_limit)


def grade_further(item: EvalItem, reply: Reply) -> tuple[float | None, str]:
    """Return score in [0, 1] and note of a reply that no judge votes on."""
    if item.reference["verifier"] == LM_EVAL:
        return grade_task_reply(item.reference, reply.text), ""
    return grade_reply(item.prompt, item.reference, reply.text)
