"""The questions put to every model: the domain's own, and IFEval, MMLU and MSBench from a file or the hub."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.ifeval import known_instructions
from iar.methods.mmlu import LETTERS, mmlu_prompt
from iar.methods.suite_grading import JUDGE
from iar.records import RETENTION, EvalItem, QAPair, RetainedPair
from iar.services.earlier_sets import retained_questions
from iar.services.evaluations import GENERAL, HUBS
from iar.services.further_suites import further_items
from iar.services.source_rows import SourceRow, source_rows

SUITES = ("domain", *GENERAL)
# Questions over two documents: a slice of the test of its own, in no other score, and only where a teacher wrote any.
CROSS = "cross_document"
JUDGED = ("domain", "msbench", CROSS, RETENTION)
# Names that results.json has beside the suites.
RESERVED = ("domain", CROSS, RETENTION, "general", "id", "split")


def load_suites(run_file: RunFile) -> dict[str, list[EvalItem]]:
    """Return the items of ifeval, mmlu and msbench in the order of their files, then those of the further suites.

    Raises UserError naming file, line and fix where a suite is missing or malformed.
    """
    settings = run_file.evaluate
    suites = {
        "ifeval": _load(settings.ifeval, "ifeval", _ifeval_item, settings.ifeval_max_tokens),
        "mmlu": _load(settings.mmlu, "mmlu", _mmlu_item, settings.mmlu_max_tokens),
        "msbench": msbench_items(run_file),
    }
    for place, items in further_items(run_file):
        name = items[0].suite
        if name in (*suites, *RESERVED):
            raise UserError(f"evaluate: {place} is named {name!r}, as another suite is; give it another name")
        _check_ids(place, items, suites)
        suites[name] = items
    return suites


def _check_ids(place: str, items: Sequence[EvalItem], others: Mapping[str, Sequence[EvalItem]]) -> None:
    """Raise UserError for an id that an item of another suite has: replies and votes are kept by it alone."""
    known = {item.id: name for name, suite in others.items() for item in suite}
    for item in items:
        if item.id in known:
            raise UserError(
                f"evaluate: {place}: {item.id} is an item of {known[item.id]} too; give the suite another name, or its "
                "row another id"
            )


def is_judged(item: EvalItem) -> bool:
    """Tell whether the panel votes on the replies to an item."""
    return item.suite in JUDGED or item.reference.get("verifier") == JUDGE


def msbench_items(run_file: RunFile) -> list[EvalItem]:
    """Return the items of msbench alone, which needs none of the libraries behind the other suites."""
    settings = run_file.evaluate
    return _load(settings.msbench, "msbench", _msbench_item, settings.msbench_max_tokens)


def domain_items(pairs: Sequence[QAPair], run_file: RunFile, suite: str = "domain") -> list[EvalItem]:
    """Return the questions as items: the question alone is the prompt, as in training."""
    limit = run_file.evaluate.domain_max_tokens
    return [EvalItem(pair.id, suite, pair.question, limit, _domain_reference(pair)) for pair in pairs]


def retention_items(data: Path, run_file: RunFile) -> dict[str, list[EvalItem]]:
    """Return the suite of questions about earlier document sets that a dataset keeps; {} where there are none."""
    pairs = retained_questions(data)
    return {RETENTION: domain_items(pairs, run_file, RETENTION)} if pairs else {}


def _domain_reference(pair: QAPair) -> dict[str, Any]:
    asked = {"question_type": pair.question_type, "document": pair.document_id}
    asked |= {"earlier_run": pair.run_id} if isinstance(pair, RetainedPair) else {}
    return {"reference": pair.key or pair.answer, "aliases": list(pair.aliases)} | asked


def _load(place: str, suite: str, to_item: Callable[[SourceRow, int], EvalItem], max_new_tokens: int) -> list[EvalItem]:
    items: list[EvalItem] = []
    seen: set[str] = set()
    for row in source_rows(place, f"evaluate.{suite}", HUBS[suite]):
        item = to_item(row, max_new_tokens)
        if item.id in seen:
            raise row.wrong(f"{item.id} stands there twice", "give every row an id of its own")
        seen.add(item.id)
        items.append(item)
    if not items:
        raise UserError(f"evaluate.{suite}: {place} has no rows; give a file with at least one")
    return items


def _ifeval_item(row: SourceRow, max_new_tokens: int) -> EvalItem:
    ids, kwargs = row.texts("instruction_id_list"), row.get("kwargs", list)
    if len(kwargs) != len(ids) or not all(isinstance(one, dict) for one in kwargs):
        raise row.wrong(f"{len(ids)} instructions and kwargs {json.dumps(kwargs)[:60]}", "give one object for each")
    unknown = [name for name in ids if name not in known_instructions()]
    if unknown:
        near = sorted(known_instructions())[:3]
        raise row.wrong(f"unknown instruction {unknown[0]!r}", f"use ids of IFEval, such as {', '.join(near)}")
    given = [{name: value for name, value in one.items() if value is not None} for one in kwargs]
    reference = {"instruction_ids": ids, "kwargs": given}
    return EvalItem(f"ifeval-{row.get('key', (int, str))}", "ifeval", row.get("prompt", str), max_new_tokens, reference)


def _mmlu_item(row: SourceRow, max_new_tokens: int) -> EvalItem:
    choices, answer = row.texts("choices"), row.get("answer", (int, str))
    if len(choices) != len(LETTERS):
        raise row.wrong(f"{len(choices)} choices", f"give {len(LETTERS)}")
    letter = LETTERS[answer] if isinstance(answer, int) and 0 <= answer < len(LETTERS) else str(answer).strip().upper()
    if letter not in tuple(LETTERS):
        raise row.wrong(f"answer is {answer!r}", "give a number from 0 to 3 or a letter from A to D")
    question = row.get("question", str)
    reference = {"question": question, "choices": choices, "answer": letter}
    reference |= {"subject": str(row.data.get("subject", ""))}
    prompt = mmlu_prompt(question, choices)
    return EvalItem(f"mmlu-{row.number}", "mmlu", prompt, max_new_tokens, reference)


def _msbench_item(row: SourceRow, max_new_tokens: int) -> EvalItem:
    points = row.texts("reference_points") if row.data.get("reference_points") else []
    answer = row.data.get("reference") or ""
    if not isinstance(answer, str) or not (answer or points):
        raise row.wrong("neither a reference text nor reference_points", "give at least one, for the judges")
    reference = {"reference": answer, "points": points}
    return EvalItem(
        f"msbench-{row.get('id', (int, str))}", "msbench", row.get("prompt", str), max_new_tokens, reference
    )
