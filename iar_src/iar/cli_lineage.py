"""`iar lineage`: questions to the provenance registry, followed either way, and whether it can be believed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iar.cli_options import AsJson, State, load, print_json, state_folder
from iar.errors import ExitCode, TemporaryError, UserError

if TYPE_CHECKING:
    from iar.config import RunFile
    from iar.services.lineage import Row
    from iar.services.registry import Registry

lineage = typer.Typer(no_args_is_help=True, help="What something was made from, what was made from it, and retraction.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id as lineage and reports print it; its beginning is enough.")]
Product = Annotated[str, typer.Argument(metavar="A", help="Id of the product.")]
Ancestor = Annotated[str, typer.Argument(metavar="B", help="Id of what it may be made from.")]
First = Annotated[str, typer.Argument(metavar="A", help="Id of a dataset or another entry, or the id of a run.")]
Second = Annotated[str, typer.Argument(metavar="B", help="The same of what it is compared with.")]
MaybeId = Annotated[str, typer.Argument(metavar="[ID]", help="Id of what to check; without one, everything.")]
LineageRun = Annotated[Path | None, typer.Option("--run", metavar="RUN.yaml", help="Run file, for its registry.")]
All = Annotated[bool, typer.Option("--all", help="List every entry, not their number, where there are many alike.")]
Dot = Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")]
OfKind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="List every entry of this kind, such as checkpoint, and no other.")
]
Head = Annotated[list[str] | None, typer.Option("--head", metavar="HEAD", help="A head that was printed before.")]
SignedBy = Annotated[
    Path | None,
    typer.Option("--public-key", metavar="PUBLIC.pem", help="Check the signatures of this key, of ID or of all."),
]
Check = Annotated[bool, typer.Option("--all", help="Check everything, as without an ID.")]


@lineage.command()
def upstream(
    id_: Id, kind: OfKind = "", run_yaml: LineageRun = None, state: State = None, all_: All = False, dot: Dot = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what ID was made from, down to the source documents."""
    with opened(run_yaml, state) as registry:
        rows = _followed(registry, id_, kind, all_, up=True)
    _print_rows(rows, dot, as_json)


@lineage.command()
def downstream(
    id_: Id, kind: OfKind = "", run_yaml: LineageRun = None, state: State = None, all_: All = False, dot: Dot = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what was made from ID: with --kind checkpoint, which models hold this document."""
    with opened(run_yaml, state) as registry:
        rows = _followed(registry, id_, kind, all_, up=False)
    _print_rows(rows, dot, as_json)


def _followed(registry: "Registry", id_: str, kind: str, all_: bool, up: bool) -> "list[Row]":
    from iar.services.lineage import SHOWN_SIBLINGS, list_kind, render_downstream, render_upstream

    digest = registry.find(id_).digest
    if kind:
        return list_kind(registry, digest, kind, up)
    return (render_upstream if up else render_downstream)(registry, digest, None if all_ else SHOWN_SIBLINGS)


@lineage.command()
def why(
    product: Product, ancestor: Ancestor, run_yaml: LineageRun = None, state: State = None, dot: Dot = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show a shortest way from A down to B: why a model holds a document."""
    from iar.services.lineage import render_way

    with opened(run_yaml, state) as registry:
        made, source = registry.find(product), registry.find(ancestor)
        rows = render_way(registry, made.digest, source.digest)
    if not rows and not as_json:
        raise UserError(f"{product} was not made from {ancestor}: no way leads there; try the other way round")
    _print_rows(rows, dot, as_json)


@lineage.command()
def diff(
    first: First, second: Second, run_yaml: LineageRun = None, state: State = None, dot: Dot = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show how B differs from A: items of datasets with the reason; settings, code and data of runs."""
    from iar.services.lineage_diff import diff as differences

    with opened(run_yaml, state) as registry:
        found = differences(registry, first, second)
    if dot:
        from iar.services.lineage_graphs import diff_rows

        _print_rows(diff_rows(first, second, found), dot, as_json)
        return
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        typer.echo(f"{one.change} {one.item}: {one.why}")
    typer.echo(f"{len(found)} differences")


@lineage.command()
def coverage(
    id_: Id, run_yaml: LineageRun = None, state: State = None, dot: Dot = False, as_json: AsJson = False
) -> None:
    """Show which chunks of a dataset's documents have no question, and which pairs nobody certified."""
    from iar.services.lineage_questions import coverage as covered

    with opened(run_yaml, state) as registry:
        found, entry = covered(registry, id_), registry.find(id_)
    if dot:
        from iar.services.lineage_graphs import coverage_rows

        _print_rows(coverage_rows(entry, found), dot, as_json)
        return
    if as_json:
        print_json(asdict(found))
        return
    for title, ids, total in (
        ("chunks without a question", found.unasked, found.chunks),
        ("pairs without a certifier", found.uncertified, found.pairs),
    ):
        typer.echo(f"{title}: {len(ids)} of {total}")
        for shown in ids[:20]:
            typer.echo(f"  {shown}")
        if len(ids) > 20:
            typer.echo("  ...; --json lists all")
    for agent, name in found.certifiers.items():
        typer.echo(f"every pair has passed {agent}  {name}")


@lineage.command("consumed-by")
def consumed_by(
    id_: Id, run_yaml: LineageRun = None, state: State = None, dot: Dot = False, as_json: AsJson = False
) -> None:
    """Show which stage of which run used ID, in what role, to make what."""
    from iar.services.lineage_questions import consumed_by as uses

    with opened(run_yaml, state) as registry:
        found, entry = uses(registry, id_), registry.find(id_)
    if dot:
        from iar.services.lineage_graphs import uses_rows

        _print_rows(uses_rows(entry, found), dot, as_json)
        return
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        made = f"{one.id}  {one.name}".rstrip() if one.id else f"nothing, {one.status}"
        typer.echo(f"{one.run_id} {one.stage}: {one.role} of {made}")
    typer.echo(f"{len(found)} uses")


@lineage.command("real-share")
def real_share(id_: Id, run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False) -> None:
    """Show how much people wrote and how much a language model: words of a dataset, tokens of a training."""
    from iar.services.lineage_questions import real_share as share

    with opened(run_yaml, state) as registry:
        found = share(registry, id_)
    if as_json:
        print_json(asdict(found))
        return
    real = "-" if found.share is None else f"{100 * found.share:.1f} %"
    typer.echo(
        f"{real} of its {found.unit} were written by people: {found.documents} in documents, {found.quoted} quoted "
        f"from them by rules; {found.synthetic} were written by a language model"
        + f"; {found.given} of given instructions, not counted"
        * bool(found.given)
    )


@lineage.command()
def reproduce(
    id_: Id, run_yaml: LineageRun = None, state: State = None, dot: Dot = False, as_json: AsJson = False
) -> None:
    """Show the recipe of ID: the stages behind it in order, what is computed again and what is replayed."""
    from iar.services.lineage_recipe import reproduce as recipe

    with opened(run_yaml, state) as registry:
        found = recipe(registry, id_)
    if dot:
        from iar.services.lineage_graphs import recipe_rows

        _print_rows(recipe_rows(found), dot, as_json)
        return
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['id']}  {found['name']}, by {', '.join(found['runs'])}")
    for one in found["activities"]:
        code = f"code {one['code_version'][:12]}, settings {one['config_digest'][:12]}, seed {one['seed']}"
        typer.echo(f"  {one['stage']}: {code}\n    {one['how']}")
    folder = state_folder(load(run_yaml, None, state) if run_yaml else None, state) / "runs"
    for run in found["runs"]:
        if (folder / run / "run.json").is_file():
            typer.echo(f"Settings of {run}: {folder / run / 'run.json'}")


@lineage.command()
def verify(
    id_: MaybeId = "", check_all: Check = False, head: Head = None, public_key: SignedBy = None,
    run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Check that nothing was changed: the registry's chains, the files' bytes, anchors, decontamination, signatures.

    Ends with exit code 1 where something was. The head it prints shows later whether this registry was replaced; with
    --run the heads that MLflow has of the run are compared too.
    """
    from iar.services.integrity import verify_all, verify_entry
    from iar.services.signatures import signature_findings

    if id_ and check_all:
        raise UserError("ID and --all exclude each other; give one of them")
    run_file = load(run_yaml, None, state) if run_yaml else None
    folder = state_folder(run_file, state)
    with opened(run_yaml, state) as registry:
        if run_file and not id_:
            head = [*(head or []), *_tracked(run_file, folder, registry)]
        faults = verify_entry(registry, folder, id_) if id_ else verify_all(registry, folder, head or [])
        if public_key:
            signed = [registry.find(id_).digest] if id_ else None
            faults += signature_findings(registry, public_key, signed)
        end = registry.head()
    if as_json:
        print_json({"faults": faults, "head": end})
    else:
        for line in faults or ["nothing was changed"]:
            typer.echo(line)
        typer.echo(f"head: {end}")
    if faults:
        raise typer.Exit(ExitCode.BUG)


def _tracked(run_file: "RunFile", folder: Path, registry: "Registry") -> list[str]:
    """Return the heads that MLflow has of a run's registry; a server that is down is told, and no fault of it."""
    from iar.services.registry_heads import tracked_heads

    try:
        return tracked_heads(run_file, folder, registry)
    except TemporaryError as error:
        typer.echo(f"not compared with MLflow: {error}", err=True)
        return []


def _print_rows(rows: "list[Row]", dot: bool, as_json: bool) -> None:
    from iar.services.lineage import format_dot, format_rows

    if dot and as_json:
        raise UserError("--dot and --json exclude each other; give one of them")
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        typer.echo(format_dot(rows) if dot else format_rows(rows))


@contextmanager
def opened(run_yaml: Path | None, state: Path | None, to_read: bool = True) -> "Iterator[Registry]":
    """Yield the registry of a run file or a state folder. Raises UserError where there is none."""
    registry = open_registry(run_yaml, state, to_read)
    try:
        yield registry
    finally:
        registry.close()


def open_registry(run_yaml: Path | None, state: Path | None, to_read: bool = True) -> "Registry":
    """Return the registry of a run file or a state folder. Raises UserError where there is none."""
    from iar.services.registry import Registry

    run_file = load(run_yaml, None, state) if run_yaml else None
    url = run_file.register.registry_url if run_file else ""
    place: Any = url or state_folder(run_file, state) / "registry.sqlite"
    url = url or f"sqlite:///{place}"
    found = Registry.open_to_read(url)
    if found is None:
        raise UserError(f"no registry at {place}; run a run file first, or name its folder with --state")
    return found if to_read else Registry.open(url)
