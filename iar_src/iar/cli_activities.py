"""`iar lineage activities` and `examples`: what was done at what cost, and what a model was shown."""

from dataclasses import asdict
from typing import Annotated

import typer

from iar.cli_lineage import Id, LineageRun, opened
from iar.cli_options import AsJson, State, load, print_json, state_folder

MaybeRun = Annotated[str, typer.Argument(metavar="[RUN-ID]", help="Id of a run; without one, of all.")]
Failed = Annotated[bool, typer.Option("--failed", help="Those that failed or were killed, only.")]
Kind = Annotated[str, typer.Option("--kind", metavar="KIND", help="Those of a kind, such as train or retract, only.")]
About = Annotated[
    str, typer.Option("--of", metavar="ID", help="Only those made of this document, chunk, question or retelling.")
]


def activities(
    run_id: MaybeRun = "", failed: Failed = False, kind: Kind = "", run_yaml: LineageRun = None, state: State = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what was done, by a run or by all: how long it took, what it cost, on what hardware, and what failed.

    With --json also code, settings, seed and packages, and with their roles what was used and made.
    """
    from iar.services.lineage_activities import activities as done
    from iar.services.lineage_activities import activity_lines

    with opened(run_yaml, state) as registry:
        found = done(registry, run_id, failed, kind)
        lines = list(activity_lines(registry, found))
    if as_json:
        print_json([{"id": one.id} | asdict(one) | {"ended": one.started + one.seconds} for one in found])
        return
    for line in lines:
        typer.echo(line)
    typer.echo("1 activity" if len(found) == 1 else f"{len(found)} activities")


def examples(
    id_: Id, about: About = "", run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False
) -> None:
    """List the training examples of a checkpoint: objective, id, and the document, chunk or question behind each."""
    from iar.services.lineage_examples import examples_of

    folder = state_folder(load(run_yaml, None, state) if run_yaml else None, state)
    with opened(run_yaml, state) as registry:
        found = list(examples_of(registry, folder, id_, about))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        typer.echo(f"{one.objective} {one.id} of {one.source_id}")
    typer.echo(f"{len(found)} examples")
