"""Datasets against evaluations: what gives away an evaluated prompt is dropped, and what was checked is on record."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from iar.errors import PermanentError
from iar.methods.contamination import Evaluation, Hit, PromptIndex, TrainingText, planted_leaks
from iar.records import EvalCheck, Reject, from_json, read_records, to_json, write_json, write_records
from iar.services.evaluations import dataset_texts
from iar.services.reject_log import RejectLog
from iar.services.workspace import CHECKS, HITS


class Identified(Protocol):
    """An item of a dataset."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Identified)


@dataclass(frozen=True)
class Decontamination:
    """One dataset against several evaluations: a check for each, and for each item and evaluation its worst hit."""

    checks: tuple[EvalCheck, ...]
    hits: tuple[Hit, ...]

    @property
    def worst(self) -> dict[str, Hit]:
        """The first hit of each item that has one."""
        return {hit.item_id: hit for hit in reversed(self.hits)}

    def divide(self, items: Iterable[Item], step: str) -> tuple[list[Item], list[Reject]]:
        """Return the items without a hit, in order, and a reject for each other."""
        worst = self.worst
        kept, rejects = [], []
        for item in items:
            hit = worst.get(item.id)
            if hit is None:
                kept.append(item)
            else:
                rejects.append(reject(step, hit))
        return kept, rejects


def decontaminate(
    dataset: str, items: Iterable[TrainingText], evaluations: Sequence[Evaluation], index: PromptIndex | None = None
) -> Decontamination:
    """Look in every item, one after the other, for the prompts of all evaluations, and for leaks planted among them.

    `index`: of the same evaluations, where there is one already. Raises PermanentError where a planted leak is not
    found: then the check itself is broken and says nothing about the dataset.
    """
    index = index or PromptIndex(evaluations)
    planted = _find_planted(index, evaluations)
    hits: list[Hit] = []
    count = 0
    for item in items:
        count += 1
        worst: dict[str, Hit] = {}
        for hit in index.find(item):
            if hit.evaluation not in worst or hit.share > worst[hit.evaluation].share:
                worst[hit.evaluation] = hit
        hits.extend(worst.values())
    found = Counter(hit.evaluation for hit in hits)
    checks = []
    for one in evaluations:
        checked = index.checked(one.name)
        why = one.unread or nothing_checked(len(one.prompts), checked, count)
        checks.append(
            EvalCheck(dataset, one.name, one.digest, len(one.prompts), checked, count, found[one.name],
                      planted[one.name], why)
        )  # fmt: skip
    return Decontamination(tuple(checks), tuple(hits))


def _find_planted(index: PromptIndex, evaluations: Iterable[Evaluation]) -> Mapping[str, int]:
    """Return how many leaks of each evaluation were planted, all of them found. Raises PermanentError."""
    planted: Counter[str] = Counter()
    for evaluation in evaluations:
        for plant in planted_leaks(evaluation):
            if not any(hit.evaluation == evaluation.name for hit in index.find(plant)):
                raise PermanentError(
                    f"decontamination: the planted leak ({plant.id}) was not found, so nothing is known to be clean; "
                    "this is a fault of the check, not of the data: report it with the file of that evaluation"
                )
            planted[evaluation.name] += 1
    return planted


def nothing_checked(prompts: int, checked: int, items: int) -> str:
    """Return why a check says nothing, "" where it says something."""
    if not prompts:
        return "it has no prompts"
    if not checked:
        return f"none of its {prompts} prompts has a word"
    return "" if items else "the dataset is empty"


def reject(step: str, hit: Hit) -> Reject:
    """Return the reject of an item with a hit; the counterpart is the prompt, of a sealed evaluation its id."""
    reason = f"gives away a prompt of {hit.evaluation} ({hit.rule})"
    return Reject(step, hit.item_id, reason, hit.text, hit.prompt or hit.prompt_id, "contaminated")


def write_checks(out: Path, found: Sequence[Decontamination]) -> None:
    """Write what was checked and every hit with both sides."""
    write_records(out / HITS, (hit for one in found for hit in one.hits))
    write_json(out / CHECKS, [to_json(check) for one in found for check in one.checks])


def read_checks(folder: Path) -> list[EvalCheck]:
    """Return what `write_checks` left, [] where it left nothing."""
    if not (folder / CHECKS).is_file():
        return []
    return [from_json(EvalCheck, check) for check in json.loads((folder / CHECKS).read_text(encoding="utf-8"))]


def read_hits(folder: Path) -> Iterator[Hit]:
    """Yield the hits that `write_checks` left, none where it left nothing."""
    return read_records(folder / HITS, Hit) if (folder / HITS).is_file() else iter(())


def check_lines(checks: Iterable[EvalCheck]) -> Iterator[str]:
    """Yield one line an evaluation, those without a hit too."""
    for check in checks:
        against = f"{check.dataset} against {check.evaluation}"
        if check.unchecked:
            yield f"{against}: UNCHECKED: {check.unchecked}"
            continue
        yield (
            f"{against}: {check.hits} of {check.items} items give away one of {check.checked} prompts "
            f"(sha256 {check.digest[:12]}, {check.planted} planted leaks found)"
        )


def unchecked(checks: Iterable[EvalCheck], evaluations: Iterable[str]) -> dict[str, str]:
    """Return the evaluations against which some dataset, or all of them, went unchecked, each with the reason."""
    found: dict[str, str] = {}
    seen = set()
    for check in checks:
        seen.add(check.evaluation)
        if check.unchecked:
            found.setdefault(check.evaluation, f"{check.dataset}: {check.unchecked}")
    return {name: "no check is on record" for name in evaluations if name not in seen} | found


def decontaminate_file(dataset: Path, evaluations: Sequence[Evaluation], out: Path | None) -> Decontamination:
    """Look through a JSONL dataset; `out`: folder for `kept.jsonl`, the clean rows byte for byte, `rejects.parquet`
    and the findings.

    Rows count by their line. Raises UserError for a dataset or a row that cannot be read, and then writes nothing.
    """
    found = decontaminate(str(dataset), dataset_texts(dataset), evaluations)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        with RejectLog(out / "rejects.parquet") as rejects:
            rejects.add(reject(dataset.name, hit) for hit in found.worst.values())
        part = out / "kept.jsonl.part"
        with part.open("w", encoding="utf-8", newline="") as file:
            file.writelines(_clean_lines(dataset, set(found.worst)))
        part.replace(out / "kept.jsonl")
        write_checks(out, [found])
    return found


def _clean_lines(dataset: Path, dropped: set[str]) -> Iterator[str]:
    with dataset.open(encoding="utf-8", newline="\n") as lines:
        yield from (line for number, line in enumerate(lines, 1) if line.strip() and str(number) not in dropped)
