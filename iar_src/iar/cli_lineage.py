"""`iar lineage`: the registry's edges, followed either way."""

from pathlib import Path
from typing import Annotated, Any

import typer

from iar.cli_options import AsJson, State, load, print_json, state_folder
from iar.errors import UserError

lineage = typer.Typer(no_args_is_help=True, help="Show what something was made from, or what was made from it.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id as lineage and reports print it; its beginning is enough.")]
LineageRun = Annotated[Path | None, typer.Option("--run", metavar="RUN.yaml", help="Run file, for its registry.")]
All = Annotated[bool, typer.Option("--all", help="List every entry, not their number, where there are many alike.")]


@lineage.command()
def upstream(
    id_: Id, run_yaml: LineageRun = None, state: State = None, all_: All = False, as_json: AsJson = False
) -> None:
    """Show what ID was made from, down to the source documents."""
    from iar.services.lineage import render_upstream

    _print_lineage(render_upstream, id_, run_yaml, state, all_, as_json)


@lineage.command()
def downstream(
    id_: Id, run_yaml: LineageRun = None, state: State = None, all_: All = False, as_json: AsJson = False
) -> None:
    """Show what was made from ID: which models hold this document."""
    from iar.services.lineage import render_downstream

    _print_lineage(render_downstream, id_, run_yaml, state, all_, as_json)


def _print_lineage(render: Any, id_: str, run_yaml: Path | None, state: Path | None, all_: bool, as_json: bool) -> None:
    from iar.services.lineage import SHOWN_SIBLINGS, format_rows
    from iar.services.registry import Registry

    run_file = load(run_yaml, None, state) if run_yaml else None
    url = run_file.register.registry_url if run_file else ""
    if not url:
        database = state_folder(run_file, state) / "registry.sqlite"
        if not database.is_file():
            raise UserError(f"no registry at {database}; run a run file first, or name its folder with --state")
        url = f"sqlite:///{database}"
    registry = Registry.open(url)
    rows = render(registry, registry.find(id_).digest, None if all_ else SHOWN_SIBLINGS)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        typer.echo(format_rows(rows))
