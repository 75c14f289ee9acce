"""What commands print: tables on a terminal, plain aligned text anywhere else."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from iar.config import Endpoint, RunFile

if TYPE_CHECKING:
    from rich.console import Console

    from iar.services.findings import Check

MARKS = {"pass": "green", "warn": "yellow", "fail": "red"}


def open_console(stderr: bool = False) -> "Console":
    """Return the console of this process, bound to its stream now: a run sends later prints to its log."""
    from rich.console import Console

    return Console(file=sys.stderr if stderr else sys.stdout, highlight=False, soft_wrap=True)


def print_table(console: "Console", titles: Sequence[str], rows: Iterable[Sequence[str]], bold: int = -1) -> None:
    """Print rows below their titles; row number `bold` stands out on a terminal."""
    rows = [list(row) for row in rows]
    if not console.is_terminal:
        for line in plain_table(titles, rows):
            console.print(line, markup=False)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold green" if number == bold else None)
    console.print(table, soft_wrap=False)


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the table as lines of aligned columns."""
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def print_results(console: "Console", results: dict[str, Any]) -> None:
    """Print the result table of a finished run, in points with 95 % intervals, and the pick."""
    from iar.report.tables import columns_of

    models, pick = results.get("models", []), results.get("pick", "")
    columns = columns_of(models)
    rows = [
        [model["id"] + (" (pick)" if model["id"] == pick else ""), model.get("split", ""), *_scores(model, columns)]
        for model in models
    ]
    chosen = [number for number, model in enumerate(models) if model["id"] == pick and model.get("split") == "test"]
    titles = ("Model", "Split", *(title for _, title in columns))
    print_table(console, titles, rows, bold=chosen[0] if chosen else -1)
    wish = results.get("preferred", "")
    by = f", by {wish}" * bool(wish)
    console.print(f"Pick: {pick}{by}" if pick else f"Pick: none, no candidate was feasible{by}", markup=False)
    for against, axes in results.get("paired", {}).items():
        gains = ", ".join(f"{axis} {_difference(score)}" for axis, score in axes.items())
        console.print(f"Pick minus {against} on test, paired: {gains}", markup=False)
    print_verifiers(console, results)
    print_warnings(console, results)
    print_recipes(console, results)


def print_verifiers(console: "Console", results: dict[str, Any]) -> None:
    """Print how far attacks fool the judges, and how often each set was looked at."""
    from iar.report.tables import looks_lines, verifier_lines

    for line in (*verifier_lines(results), *looks_lines(results)):
        console.print(line, markup=False)


def print_warnings(console: "Console", results: dict[str, Any]) -> None:
    """Print the warnings beside the scores, where there are any: what may flatter them, a training gone too far."""
    from iar.report.tables import diverged_lines, regression_lines, taken_before_text, unchecked_text

    if results.get("taken_before"):
        console.print(taken_before_text(results["taken_before"]), markup=False)
    for line in (*regression_lines(results), *diverged_lines(results)):
        console.print(line, markup=False)
    if results.get("unchecked"):
        console.print(unchecked_text(results["unchecked"]), markup=False)


def print_recipes(console: "Console", results: dict[str, Any]) -> None:
    """Print the table of controls and baselines, where any was asked for."""
    from iar.report.tables import RECIPE_TITLES, recipe_lines

    rows = recipe_lines(results)
    if rows:
        split = results["recipes"][0]["split"]
        console.print(f"\nRecipes on {split}; ratio: trained tokens to those of Inject + Align", markup=False)
        print_table(console, RECIPE_TITLES, rows)


def _difference(score: dict[str, Any]) -> str:
    return f"{score['points']:+.1f} [{score['low']:+.1f}, {score['high']:+.1f}]"


def _scores(model: dict[str, Any], columns: Sequence[tuple[str, str]]) -> list[str]:
    return [_interval(model.get(suite)) for suite, _ in columns]


def _interval(score: dict[str, Any] | None) -> str:
    if not score or score.get("points") is None:
        return "-"
    return f"{score['points']:.1f} [{score['low']:.1f}, {score['high']:.1f}]"


def provenance(run_file: RunFile) -> list[str]:
    """Return who taught and who judged, saying what is only rule-based."""
    teacher = run_file.qa_build.teacher
    judges = [_judge(judge) for judge in run_file.evaluate.judges]
    taught = f"LLM {teacher.model}" if isinstance(teacher, Endpoint) else "offline and rule-based, no LLM"
    return [f"Questions and answers: {taught}", f"Judges: {', '.join(judges)}"]


def _judge(judge: "str | Endpoint") -> str:
    return f"LLM {judge.model} ({judge.name})" if isinstance(judge, Endpoint) else f"{judge} (rule-based, no LLM)"


def print_stages(console: "Console", stages: Sequence[dict[str, Any]]) -> None:
    """Print where each stage stands, with its seconds and whether an earlier result was reused."""
    rows = [[stage["task"], stage["state"], *_took(stage)] for stage in stages]
    print_table(console, ("Stage", "State", "Time", ""), rows)


def _took(stage: dict[str, Any]) -> tuple[str, str]:
    if stage["state"] != "done":
        total = stage.get("total") or 0
        return "", " ".join(
            filter(None, [f"{100 * stage['done'] / total:.0f} %" if total else "", stage.get("note", "")])
        )
    return f"{stage['seconds']:.1f} s", "reused" if stage["reused"] else ""


def print_check(console: "Console", check: "Check") -> None:
    """Print one finding of the doctor on one line."""
    from rich.markup import escape

    fix = f"  -> {check.fix}" if check.fix and check.status != "pass" else ""
    colour = MARKS[check.status]
    console.print(f"[{colour}]{check.status}[/]  {escape(f'{check.name}: {check.detail}{fix}')}")
