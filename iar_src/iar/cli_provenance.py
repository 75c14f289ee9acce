"""Commands that hand provenance on: exports in the formats of others, signatures, and the registry as a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iar.cli_lineage import Id, LineageRun, opened
from iar.cli_options import AsJson, State, load, print_json, state_folder, write_output
from iar.errors import ExitCode, UserError

if TYPE_CHECKING:
    pass

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
    with opened(run_yaml, state) as registry:
        text = export_text(registry, id_, format_, state_folder(run_file, state))
    write_output(out, "--out", text)
    typer.echo(str(out))


Target = Annotated[
    str, typer.Argument(metavar="RUN.yaml|ID", help="Run file of a finished run, or the id of a model or of scores.")
]
Key = Annotated[Path, typer.Option("--key", metavar="KEY.pem", help="Private key; IAR_KEY_PASSWORD unlocks it.")]
PublicKey = Annotated[Path, typer.Option("--public-key", metavar="PUBLIC.pem", help="Public key of the signer.")]


def sign(target: Target, key: Key, run_yaml: LineageRun = None, state: State = None) -> None:
    """Sign a run's model, its test scores and its folder, or the statement about one entry."""
    from iar.services import signatures
    from iar.services.promotion_gates import finalist

    if _is_run(target):
        run_file = load(Path(target), None, state)
        with opened(Path(target), state, to_read=False) as registry:
            for line in signatures.sign_run(finalist(run_file), registry, key):
                typer.echo(f"Signed {line}")
        return
    with opened(run_yaml, state, to_read=False) as registry:
        new = signatures.sign_entry(registry, target, key)
    typer.echo(f"Signed {target}" if new else f"{target} was signed with this key before")


def verify_signatures(
    target: Target, public_key: PublicKey, run_yaml: LineageRun = None, state: State = None, as_json: AsJson = False
) -> None:
    """Check the signatures of a run or of one entry. Exit code 2 when one is missing or does not hold."""
    from iar.services import signatures
    from iar.services.promotion_gates import finalist

    if _is_run(target):
        run_file = load(Path(target), None, state)
        with opened(Path(target), state) as registry:
            findings = signatures.run_findings(finalist(run_file), registry, public_key)
    else:
        with opened(run_yaml, state) as registry:
            digest = registry.find(target).digest
            findings = signatures.signature_findings(registry, public_key, [digest])
    if as_json:
        print_json(findings)
    else:
        typer.echo("\n".join(findings) or f"{target}: every signature holds")
    if findings:
        raise typer.Exit(ExitCode.USER_ERROR)


def _is_run(target: str) -> bool:
    return target.endswith((".yaml", ".yml"))
