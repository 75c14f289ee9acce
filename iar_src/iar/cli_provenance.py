"""Commands that hand provenance on: exports in the formats of others, signatures, and the registry as a service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from iar.cli_lineage import Id, LineageRun, opened
from iar.cli_options import AsJson, State, load, print_json, state_folder, write_output
from iar.errors import ExitCode, UserError

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
    from iar.services.finalist import finalist

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
    from iar.services.finalist import finalist

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


registry_app = typer.Typer(no_args_is_help=True, help="The provenance registry as a service.")
TOKEN = "IAR_API_TOKEN"
LEAST_TOKEN_CHARACTERS = 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@registry_app.callback()
def registry_root() -> None:
    """Keep `serve` a command of its own."""


@registry_app.command()
def serve(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen at.")] = 8700,
    address: Annotated[str, typer.Option("--address", help="Address to listen at.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help=f"File with the token; default ${TOKEN}.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="No token; only on this machine's own address.")] = False,
    run_yaml: LineageRun = None,
    state: State = None,
) -> None:
    """Serve the registry to read: JSON below /v1, its description at /openapi.json, a page to browse at /."""
    token = _token(token_file, no_auth, address)
    try:
        import uvicorn

        from iar.services.registry_api import api
    except ImportError as error:
        raise UserError(f"serving needs the package {error.name}: pip install 'iar[api]'") from error
    with opened(run_yaml, state) as registry:
        typer.echo(f"Registry at http://{address}:{port}", err=True)
        uvicorn.run(api(registry, token), host=address, port=port, log_level="warning", server_header=False)


def _token(token_file: Path | None, no_auth: bool, address: str) -> str:
    """Return the token that readers must send, "" for none. Raises UserError for one that protects nothing."""
    if no_auth:
        if address not in LOOPBACK:
            raise UserError(f"--no-auth at {address}: everybody on the network could read; give a token, or 127.0.0.1")
        return ""
    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file else os.environ.get(TOKEN, "").strip()
    except OSError as error:
        raise UserError(f"--token-file {token_file}: {error.strerror}; name a file with a token") from error
    place = f"--token-file {token_file}" if token_file else TOKEN
    if not token:
        raise UserError(f"{place}: no token; set {TOKEN}, give --token-file, or on this machine alone --no-auth")
    if len(token) < LEAST_TOKEN_CHARACTERS or not token.isascii():
        least = f"{LEAST_TOKEN_CHARACTERS} ASCII characters or more"
        raise UserError(f"{place}: too weak; make one of {least}: openssl rand -hex 32")
    return token
