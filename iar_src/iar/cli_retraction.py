"""`iar lineage retract` and what follows: restoring, erasing, and what must run again."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iar.cli_lineage import Id, LineageRun, opened
from iar.cli_options import AsJson, State, load, print_json, state_folder
from iar.errors import UserError

if TYPE_CHECKING:
    from iar.services.registry import Registry
    from iar.services.retraction import Damage, Tainted

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it stays in the registry.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="The person who decides; stays in the registry.")]
MaybeBy = Annotated[str, typer.Option("--by", metavar="NAME", help="The person who decides, if it is to be on record.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it only says what it would do.")]
SHOWN = 20


def retract(
    id_: Id, reason: Reason, by: MaybeBy = "", run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False
) -> None:
    """Take ID, or the file with this SHA-256, out of use: no run reads it, no model made from it is promoted."""
    from iar.services.retraction import damage
    from iar.services.retraction import retract as retract_in

    with opened(run_yaml, state, to_read=False) as registry:
        made, new = retract_in(registry, id_, reason, by)
        found = damage(registry, made.subject)
        _keep_head(registry, run_yaml, state)
    if as_json:
        about = asdict(made) | {"new": new, "made_from_it": found.counts, "standing_aliases": found.aliases}
        lists = {"datasets": found.datasets, "models": found.models, "published": found.published}
        print_json(about | {name: [asdict(one) for one in entries] for name, entries in lists.items()})
        return
    what = made.id + f" ({made.name})" * bool(made.name)
    typer.echo(f"Retracted {what}" if new else f"{what} was retracted before: {made.reason}")
    for line in _told(found):
        typer.echo(line)


def _told(found: "Damage") -> "Iterator[str]":
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
    yield f"Made from it: {counts or 'nothing'}"
    yield from _listed("To rebuild", found.datasets)
    yield from _listed("No longer stand", found.models)
    yield from _listed("Numbers that no longer stand", found.published)
    for alias, version in found.aliases.items():
        serving = alias.partition("@")[2]
        yield (
            f"Still served: {alias} is version {version}; promote a run without it, or go back: "
            f"iar promote RUN.yaml --alias {serving} --rollback"
        )
    if found.datasets:
        yield "What must run again: iar lineage rebuild"


def _listed(title: str, entries: "tuple[Tainted, ...]") -> "Iterator[str]":
    if entries:
        shown = [f"{one.id} ({one.name})" for one in entries[:SHOWN]]
        more = f", and {len(entries) - SHOWN} more (--json lists all)" * (len(entries) > SHOWN)
        yield f"{title}: {', '.join(shown)}{more}"


def retractions(run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False) -> None:
    """List the retractions that stand."""
    from datetime import UTC, datetime

    from iar.services.retraction import retractions as standing

    with opened(run_yaml, state) as registry:
        found = standing(registry)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        when = datetime.fromtimestamp(one.time, UTC).strftime("%Y-%m-%d")
        typer.echo(f"{when} {one.id}" + f" ({one.name})" * bool(one.name) + f": {one.reason}")
    typer.echo(f"{len(found)} retractions stand")


def restore(
    id_: Id, reason: Reason, by: By, run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False
) -> None:
    """Take the retraction of ID back, as the decision of a named person; both stay in the registry."""
    from iar.services.retraction import restore as restore_in

    with opened(run_yaml, state, to_read=False) as registry:
        restored = restore_in(registry, id_, reason, by)
        _keep_head(registry, run_yaml, state)
    if as_json:
        print_json(asdict(restored) | {"by": " ".join(by.split())})
    else:
        typer.echo(f"Restored {restored.id}, retracted for: {restored.reason}")


def erase(
    id_: Id, reason: Reason, by: By, yes: Yes = False, run_yaml: LineageRun = None, state: State = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Remove from the registry for good what retracted ID says, and what was written from it; digests stay."""
    from iar.services.retraction import erase as erase_in
    from iar.services.retraction import to_erase

    with opened(run_yaml, state, to_read=False) as registry:
        if not yes:
            count = len(to_erase(registry, id_))
            raise UserError(f"{id_}: would empty {count} entries for good; if that is meant, add --yes")
        erased = erase_in(registry, id_, reason, by)
        _keep_head(registry, run_yaml, state)
    folder = state_folder(load(run_yaml, None, state) if run_yaml else None, state)
    if as_json:
        print_json({"erased": erased})
        return
    typer.echo(f"Emptied {erased} entries; their digests and edges stay.")
    typer.echo(f"Copies of the text stand in artifacts below {folder}; iar lineage rebuild names their tasks")


def rebuild(run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False) -> None:
    """Plan the smallest rerun after retractions: of every run, what must run again and what is reused."""
    from iar.services.rebuild import plan

    folder = state_folder(load(run_yaml, None, state) if run_yaml else None, state)
    with opened(run_yaml, state) as registry:
        plans = plan(registry, folder)
    if as_json:
        print_json([asdict(one) for one in plans])
        return
    for one in plans:
        told = one.command or "run its run file again"
        typer.echo(f"{one.run_id} ({one.seconds:.0f} s before): {told}")
        typer.echo(f"  again: {', '.join(one.again)}\n  reused: {', '.join(one.reused) or 'nothing'}")
        if one.gone:
            typer.echo(f"  gone, so made again too: {', '.join(one.gone)}")
    typer.echo(f"{len(plans)} runs to rebuild" if plans else "Nothing to rebuild")


def _keep_head(registry: "Registry", run_yaml: Path | None, state: Path | None) -> None:
    from iar.services.registry_heads import keep_head

    keep_head(state_folder(load(run_yaml, None, state) if run_yaml else None, state), registry)
