"""Commands that hand provenance on: exports in the formats of others, signatures, and the registry as a service."""

from pathlib import Path
from typing import Annotated

import typer

from iar.cli_lineage import Id, LineageRun, open_registry
from iar.cli_options import State, load, state_folder, write_output
from iar.errors import UserError

FormatName = Annotated[
    str,
    typer.Option(
        "--format", metavar="NAME", help="openlineage, prov, croissant, cyclonedx, model-card or dataset-card."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")]


def export(id_: Id, format_: FormatName, out: Out, run_yaml: LineageRun = None, state: State = None) -> None:
    """Write the provenance of ID in a format that other tools read."""
    from iar.report.exports import export as export_text

    run_file = load(run_yaml, None, state) if run_yaml else None
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; give the name of a file")
    registry = open_registry(run_yaml, state)
    try:
        text = export_text(registry, id_, format_, state_folder(run_file, state))
    finally:
        registry.close()
    write_output(out, "--out", text)
    typer.echo(str(out))
