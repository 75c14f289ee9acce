"""`iar lineage`: the registry's edges, followed either way."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iar.cli_options import AsJson, State, load, print_json, state_folder
from iar.errors import UserError

if TYPE_CHECKING:
    from iar.services.registry import Registry

lineage = typer.Typer(no_args_is_help=True, help="What something was made from, what was made from it, and retraction.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id as lineage and reports print it; its beginning is enough.")]
LineageRun = Annotated[Path | None, typer.Option("--run", metavar="RUN.yaml", help="Run file, for its registry.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it stays with the retraction.")]
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


@lineage.command()
def retract(id_: Id, reason: Reason, run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False) -> None:
    """Take ID, or the file with this SHA-256, out of use for good: no model made from it is promoted any more."""
    from dataclasses import asdict

    from iar.services.retraction import made_from, standing_aliases
    from iar.services.retraction import retract as retract_in

    registry = open_registry(run_yaml, state, to_read=False)
    made, new = retract_in(registry, id_, reason)
    products, aliases = made_from(registry, made.subject), standing_aliases(registry, made.subject)
    if as_json:
        print_json(asdict(made) | {"new": new, "made_from_it": products, "standing_aliases": aliases})
        return
    what = made.id + f" ({made.name})" * bool(made.name)
    typer.echo(f"Retracted {what}" if new else f"{what} was retracted before: {made.reason}")
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(products.items()))
    typer.echo(f"Made from it: {counts or 'nothing'}")
    for alias, version in aliases.items():
        serving = alias.partition("@")[2]
        typer.echo(
            f"Still served: {alias} is version {version}; promote a run without it, or go back: "
            f"iar promote RUN.yaml --alias {serving} --rollback"
        )


def _print_lineage(render: Any, id_: str, run_yaml: Path | None, state: Path | None, all_: bool, as_json: bool) -> None:
    from iar.services.lineage import SHOWN_SIBLINGS, format_rows

    registry = open_registry(run_yaml, state)
    try:
        rows = render(registry, registry.find(id_).digest, None if all_ else SHOWN_SIBLINGS)
    finally:
        registry.close()
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        typer.echo(format_rows(rows))


def open_registry(run_yaml: Path | None, state: Path | None, to_read: bool = True) -> "Registry":
    """Return the registry of a run file or a state folder. Raises UserError where there is none."""
    from iar.services.registry import Registry

    run_file = load(run_yaml, None, state) if run_yaml else None
    url = run_file.register.registry_url if run_file else ""
    place = url or state_folder(run_file, state) / "registry.sqlite"
    url = url or f"sqlite:///{place}"
    found = Registry.open_to_read(url)
    if found is None:
        raise UserError(f"no registry at {place}; run a run file first, or name its folder with --state")
    return found if to_read else Registry.open(url)
