"""The questions put to every model: the domain's own, and IFEval, MMLU and MSBench from a file or the hub."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.ifeval import known_instructions
from iar.methods.mmlu import LETTERS, mmlu_prompt
from iar.records import EvalItem, QAPair

GENERAL = ("ifeval", "mmlu", "msbench")
SUITES = ("domain", *GENERAL)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class _Row:
    """A line of a suite with where it stands, for error messages; numbers count from 1."""

    place: str
    number: int
    data: Mapping[str, Any]

    def wrong(self, problem: str, fix: str) -> UserError:
        return UserError(f"{self.place}: {problem}; {fix}")

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        if key not in self.data:
            raise self.wrong(f"no {key!r}, only {', '.join(self.data)}", f"add the key {key!r}")
        value = self.data[key]
        if not isinstance(value, kind) or value == "":
            raise self.wrong(f"{key} is {json.dumps(value, default=str)[:60]}", f"give it as {_kind_name(kind)}")
        return value

    def texts(self, key: str) -> list[str]:
        values = self.get(key, list)
        if not values or not all(isinstance(value, str) and value.strip() for value in values):
            raise self.wrong(f"{key} is {json.dumps(values)[:60]}", "give a list of texts that are not empty")
        return list(values)


def load_suites(run_file: RunFile) -> dict[str, list[EvalItem]]:
    """Return the items of ifeval, mmlu and msbench, in the order of their files.

    Raises UserError naming file, line and fix where a suite is missing or malformed.
    """
    settings = run_file.evaluate
    return {
        "ifeval": _load(settings.ifeval, "ifeval", "train", _ifeval_item, settings.ifeval_max_tokens),
        "mmlu": _load(settings.mmlu, "mmlu", "test", _mmlu_item, settings.mmlu_max_tokens),
        "msbench": _load(settings.msbench, "msbench", "test", _msbench_item, settings.msbench_max_tokens),
    }


def domain_items(pairs: Sequence[QAPair], run_file: RunFile) -> list[EvalItem]:
    """Return the questions as items: the question alone is the prompt, as in training."""
    limit = run_file.evaluate.domain_max_tokens
    return [EvalItem(pair.id, "domain", pair.question, limit, _domain_reference(pair)) for pair in pairs]


def _domain_reference(pair: QAPair) -> dict[str, Any]:
    return {"reference": pair.key or pair.answer, "aliases": list(pair.aliases)}


def _load(
    place: str, suite: str, hub_split: str, to_item: Callable[[_Row, int], EvalItem], max_new_tokens: int
) -> list[EvalItem]:
    rows = _file_rows(Path(place)) if _is_file(place, suite) else _hub_rows(place, suite, hub_split)
    items: list[EvalItem] = []
    seen: set[str] = set()
    for row in rows:
        item = to_item(row, max_new_tokens)
        if item.id in seen:
            raise row.wrong(f"{item.id} stands there twice", "give every row an id of its own")
        seen.add(item.id)
        items.append(item)
    if not items:
        raise UserError(f"evaluate.{suite}: {place} has no rows; give a file with at least one")
    return items


def _is_file(place: str, suite: str) -> bool:
    if Path(place).is_file():
        return True
    if Path(place).suffix in (".json", ".jsonl") or not HUB_ID.fullmatch(place):
        raise UserError(
            f"evaluate.{suite}: no file {place!r} in {Path.cwd()}; give the path of a .jsonl file, or a hub id "
            "such as google/IFEval"
        )
    return False


def _file_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON: {error}; write one JSON object a line") from error
            if not isinstance(data, dict):
                raise UserError(f"{path}:{number}: a {type(data).__name__}; write one JSON object a line")
            yield _Row(f"{path}:{number}", number, data)


def _hub_rows(hub_id: str, suite: str, split: str) -> Iterator[_Row]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"evaluate.{suite}: {hub_id} is a hub id, and the package datasets is missing; pip install datasets"
        ) from error
    config = "all" if suite == "mmlu" else None
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(hub_id, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(
            f"evaluate.{suite}: cannot load {hub_id} (split {split}) from the hub: {reason}; give the path of a "
            "file, or check name and network"
        ) from error
    for number, data in enumerate(rows, 1):
        yield _Row(f"{hub_id} row {number}", number, data)


def _ifeval_item(row: _Row, max_new_tokens: int) -> EvalItem:
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


def _mmlu_item(row: _Row, max_new_tokens: int) -> EvalItem:
    choices, answer = row.texts("choices"), row.get("answer", (int, str))
    if len(choices) != len(LETTERS):
        raise row.wrong(f"{len(choices)} choices", f"give {len(LETTERS)}")
    letter = LETTERS[answer] if isinstance(answer, int) and 0 <= answer < len(LETTERS) else str(answer).strip().upper()
    if letter not in tuple(LETTERS):
        raise row.wrong(f"answer is {answer!r}", "give a number from 0 to 3 or a letter from A to D")
    reference = {"choices": choices, "answer": letter, "subject": str(row.data.get("subject", ""))}
    prompt = mmlu_prompt(row.get("question", str), choices)
    return EvalItem(f"mmlu-{row.number}", "mmlu", prompt, max_new_tokens, reference)


def _msbench_item(row: _Row, max_new_tokens: int) -> EvalItem:
    points = row.texts("reference_points") if row.data.get("reference_points") else []
    answer = row.data.get("reference") or ""
    if not isinstance(answer, str) or not (answer or points):
        raise row.wrong("neither a reference text nor reference_points", "give at least one, for the judges")
    reference = {"reference": answer, "points": points}
    return EvalItem(
        f"msbench-{row.get('id', (int, str))}", "msbench", row.get("prompt", str), max_new_tokens, reference
    )


def _kind_name(kind: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a whole number", list: "a list"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(names[one] for one in kinds)
