"""The comment under a pull request that changes a run file: which values change, which tasks, and what it will cost."""

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import groupby, pairwise
from typing import Any

from iar.config import RunFile
from iar.methods.flatten import flatten
from iar.report.cost_table import headline, rows, titles
from iar.report.markdown import block, code, plain, table
from iar.services.cost import Estimate

# GitHub takes 65,536 characters; what reviewers read is above.
MOST_DIFF_LINES = 300
MOST_LINE_CHARACTERS = 200
ALIKE_CHARACTERS = 60  # before the first that differs


def comment(new: RunFile, new_ir: str, old: RunFile | None, old_ir: str, cost: Estimate | str) -> str:
    """Return the comment as Markdown; `old` None = a new run file, `cost` a text = why there is no estimate."""
    parts = [f"### {code(new.run_id)}", _what_happens(new, old), _changes(new, old), _cost(cost)]
    if old is not None:
        parts.append(_compiled(old_ir, new_ir))
    return "\n\n".join(part for part in parts if part) + "\n"


def _what_happens(new: RunFile, old: RunFile | None) -> str:
    if old is None:
        return "A new run file: merging starts its run."
    if new.digest != old.digest:
        return f"Another run than {code(old.run_id)}: merging starts it; stages whose settings are the same are reused."
    if new.run.rerun != old.run.rerun:
        return f"The same run once more: repetition {new.run.rerun}."
    return "The same run: merging starts nothing."


def _changes(new: RunFile, old: RunFile | None) -> str:
    if old is None:
        return ""
    before, after = _values(old), _values(new)
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if not changed:
        return ""
    cells = [
        [code(key), *(code(values[key]) if key in values else "-" for values in (before, after))] for key in changed
    ]
    return table(("Key", "Before", "After"), cells)


def _values(run_file: RunFile) -> dict[str, str]:
    data: dict[str, Any] = run_file.model_dump(mode="json")
    return flatten(data)


def _cost(cost: Estimate | str) -> str:
    if isinstance(cost, str):
        return f"**Cost:** not estimated: {code(cost)}"
    lines = [[code(line[0]), *line[1:]] for line in rows(cost, {})]
    assumed = "\n".join(f"- {plain(one)}" for one in cost.assumptions)
    return f"**Cost:** {plain(headline(cost))}\n\n{table(titles({}), lines)}\n\nAssumed:\n\n{assumed}"


def _compiled(old_ir: str, new_ir: str) -> str:
    diff = list(unified_diff(old_ir.splitlines(), new_ir.splitlines(), "before", "after", n=2, lineterm=""))
    if not diff:
        return "The compiled pipeline is the same."
    shown = list(_cut(diff[:MOST_DIFF_LINES]))
    left_out = len(diff) - len(shown)
    rest = f"\n\n{left_out} more lines are left out." if left_out else ""
    text = block("\n".join(shown), "diff")
    return f"<details><summary>Compiled pipeline, {len(diff)} lines of diff</summary>\n\n{text}{rest}\n\n</details>"


def _cut(diff: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a diff, of long ones the part where they begin to differ from the line in their place."""
    groups = [list(lines) for _, lines in groupby(diff, key=lambda line: line[:1])]
    opposites = dict(_opposites(groups))
    for number, lines in enumerate(groups):
        for line in lines:
            if len(line) <= MOST_LINE_CHARACTERS:
                yield line
                continue
            alike = max((_alike(line[1:], other[1:]) for other in opposites.get(number, ())), default=0)
            start = 1 + max(0, alike - ALIKE_CHARACTERS)
            end = start + MOST_LINE_CHARACTERS
            yield f"{line[0]}{'...' * (start > 1)}{line[start:end]}{'...' * (end < len(line))}"


def _opposites(groups: Sequence[Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the number of a group of removed or added lines, and the lines in its place."""
    for number, (removed, added) in enumerate(pairwise(groups)):
        if removed[0][:1] == "-" and added[0][:1] == "+":
            yield number, added
            yield number + 1, removed


def _alike(one: str, other: str) -> int:
    """Return how many characters at the beginning are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))
