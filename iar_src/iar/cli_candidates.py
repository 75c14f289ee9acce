"""`iar candidates`: the merges of a run, with their recipes, and any of them built again."""

from pathlib import Path
from typing import Annotated

import typer

from iar.cli_options import AsJson, RunPath, Set, State, load, print_json

candidates = typer.Typer(no_args_is_help=True, help="The merges of a run: their recipes and facts, and their weights.")

Name = Annotated[str, typer.Argument(metavar="ID", help="A candidate's id, such as ties-d0.3.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Where to; default in the state folder.")
]


@candidates.command("list")
def list_(run_yaml: RunPath, set_: Set = None, state: State = None, as_json: AsJson = False) -> None:
    """Show each candidate: how far it is from its parents, whether its weights are kept, its hash."""
    from iar.services.candidate_builds import COLUMNS, run_candidates, table

    rows = run_candidates(load(run_yaml, set_, state))
    if as_json:
        print_json(rows)
        return
    lines = [COLUMNS, *table(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@candidates.command()
def build(
    run_yaml: RunPath, id_: Name, out: Output = None, set_: Set = None, state: State = None, as_json: AsJson = False
) -> None:
    """Make a candidate's weights again from its recipe and its parents; the bits must be the recorded ones."""
    from iar.services.candidate_builds import build as build_candidate

    folder = build_candidate(load(run_yaml, set_, state), id_, out, lambda done, total, note: None)
    if as_json:
        print_json({"id": id_, "folder": str(folder)})
    else:
        typer.echo(str(folder))
