"""Suites of the user: one YAML file each, with prompts in JSONL beside it and one way to verify the replies."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import regex
from pydantic import Field, ValidationError

from iar.config import Positive, RuleName, Section, Share
from iar.errors import UserError
from iar.methods.digest import digest_text
from iar.methods.mmlu import LETTERS, mmlu_prompt
from iar.methods.rotation import part_on, places_of
from iar.methods.suite_grading import JUDGE
from iar.records import EvalItem
from iar.services.source_rows import HubSplit, SourceRow, source_rows
from iar.services.yaml_source import parse_yaml

EXAMPLE = HubSplit("google/IFEval", "test")
ID_DIGITS = 12


class RotateSection(Section):
    """A set asked in parts, one after the other: a model that was tuned to one meets another next time."""

    parts: int = Field(ge=2, le=100)
    every_days: Positive


class SuiteFile(Section):
    """A suite: what is asked, how long a reply may be, and what verifies it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")
    description: str = ""
    prompts: str = Field(min_length=1)
    verifier: RuleName | Literal["regex", "choice", "judge"]
    max_tokens: Positive = 128
    private: bool = False
    non_regression: bool = False
    rotate: RotateSection | None = None
    max_attack_success: Share | None = None

    def part(self, day: date | None) -> int | None:
        """Return the part that is asked on a day, from 0; None for a suite that does not rotate.

        Raises UserError where it does and no day is given.
        """
        if self.rotate is None:
            return None
        if day is None:
            raise UserError(
                f"evaluate.date is empty, and the suite {self.name!r} rotates; write the day of this evaluation, such "
                "as --set evaluate.date=2026-12-01"
            )
        return part_on(day, self.rotate.parts, self.rotate.every_days)


def read_suite(path: Path) -> SuiteFile:
    """Return the suite of a YAML file, the place of its prompts made relative to the working folder.

    Raises UserError with the file, the key and the fix.
    """
    if not path.is_file():
        raise UserError(f"evaluate.suites: no file {str(path)!r} in {Path.cwd()}; give the path of a suite's .yaml")
    try:
        source = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}; save the file as UTF-8") from error
    try:
        suite = SuiteFile.model_validate(source.data)
    except ValidationError as error:
        lines = [f"{path}: {_key(one['loc'])}: {one['msg']}; see docs/evaluation.md" for one in error.errors()]
        raise UserError("\n".join(dict.fromkeys(lines))) from error
    return suite.model_copy(update={"prompts": str(path.parent / suite.prompts)})


def suite_files(places: Sequence[str]) -> list[str]:
    """Return the files that suites are made of: each YAML with its prompts; a missing one alone."""
    found = []
    for place in places:
        found.append(place)
        if Path(place).is_file():
            found.append(read_suite(Path(place)).prompts)
    return found


def user_items(path: Path, day: date | None = None) -> list[EvalItem]:
    """Return the items of a suite in the order of its prompts, of one that rotates those whose turn it is.

    Raises UserError naming a row and the fix; of a private suite it says nothing of what the row holds.
    """
    suite = read_suite(path)
    part = suite.part(day)
    items: dict[str, EvalItem] = {}
    for row in source_rows(suite.prompts, f"{path}: prompts", EXAMPLE):
        item = _private_item(suite, row) if suite.private else _item(suite, row)
        if item.id in items:
            raise row.wrong(f"{item.id} stands there twice", "give every row an id of its own")
        items[item.id] = item
    if not items:
        raise UserError(f"{path}: prompts: {suite.prompts} has no rows; give a file with at least one")
    found = list(items.values())
    if suite.rotate is None or part is None:
        return found
    places = places_of(part, suite.rotate.parts, [item.prompt for item in found])
    if not places:
        raise UserError(f"{path}: rotate: {len(found)} prompts make no {suite.rotate.parts} parts; give fewer parts")
    return [found[place] for place in places]


def _key(location: tuple[str | int, ...]) -> str:
    return str(location[0]) if location else "the file"


def _private_item(suite: SuiteFile, row: SourceRow) -> EvalItem:
    """Return an item whose id is a digest. Raises UserError that names the place of a row and none of its values."""
    try:
        item = _item(suite, row)
    except UserError:
        raise row.wrong(
            f"no row that {suite.verifier} can verify (it is private, so nothing of it is shown)",
            "see docs/evaluation.md for what a row holds",
        ) from None
    return replace(item, id=f"{suite.name}-{digest_text(item.prompt)[:ID_DIGITS]}", private=True)


def _item(suite: SuiteFile, row: SourceRow) -> EvalItem:
    prompt = row.get("prompt", str)
    reference = {"verifier": suite.verifier} | _reference(suite.verifier, row)
    if suite.verifier == "choice":
        prompt = mmlu_prompt(prompt, reference["choices"])
    return EvalItem(f"{suite.name}-{row.named('id')}", suite.name, prompt, suite.max_tokens, reference)


def _reference(verifier: str, row: SourceRow) -> dict[str, Any]:
    """Return what a reply is verified against."""
    if verifier == "regex":
        pattern = row.get("pattern", str)
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise row.wrong(f"pattern is {pattern!r}: {error}", "give a regular expression") from error
        return {"pattern": pattern}
    if verifier == "choice":
        choices, answer = row.texts("choices"), row.get("answer", str).strip().upper()
        if not 2 <= len(choices) <= len(LETTERS) or answer not in tuple(LETTERS[: len(choices)]):
            raise row.wrong(f"{len(choices)} choices, answer {answer!r}", "give 2 to 4 choices, and one of A to D")
        return {"choices": choices, "answer": answer}
    if verifier == JUDGE and "reference_points" in row.data:
        return {"reference": str(row.data.get("reference") or ""), "points": row.texts("reference_points")}
    aliases = row.texts("aliases") if row.data.get("aliases") else []
    return {"reference": row.get("reference", str), "aliases": aliases}
