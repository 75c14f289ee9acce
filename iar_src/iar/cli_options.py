"""Arguments and options that several commands share, and how they are read."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iar.errors import UserError

if TYPE_CHECKING:
    from iar.config import RunFile

RunPath = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="Run file.")]
MaybeRunPath = Annotated[Path | None, typer.Argument(metavar="[RUN.yaml]", help="Run file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value.")]
Recipes = Annotated[
    str | None,
    typer.Option("--recipes", metavar="A,B,...", help="Controls and baselines beside the method: sdft,replay,..."),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="RUN", help="Build on a finished run: its run file, or its id. Keeps what it learned in sight."
    ),
]
State = Annotated[Path | None, typer.Option("--state", help="State folder instead of run.state.")]
Documents = Annotated[
    Path | None,
    typer.Option(
        "--documents",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="A copy of the documents here, for the cost estimate only.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

STILL_TO_BE_NAMED = f"earlier-0000000000@{'0' * 64}"
"""In place of `run.on` while the state folder is looked up in which that run is."""


def load(path: Path, overrides: list[str] | None, state: Path | None) -> "RunFile":
    """Return the run file with the overrides and the state folder of the command line."""
    from iar.services.run_files import load_run_file

    if state is not None:
        # What is said on the command line goes before the environment.
        os.environ.pop("IAR_STATE", None)
        overrides = [*(overrides or []), f"run.state={json.dumps(str(state))}"]
    return load_run_file(path, overrides or [])


def with_recipes(overrides: list[str] | None, recipes: str | None) -> list[str]:
    """Return the overrides with that of the recipes behind them."""
    if recipes is None:
        return overrides or []
    names = ", ".join(json.dumps(name.strip()) for name in recipes.split(",") if name.strip())
    return [*(overrides or []), f"baselines.recipes=[{names}]"]


def built_on(path: Path, overrides: list[str], on: str | None, state: Path | None) -> list[str]:
    """Return the overrides with that of the earlier run behind them. Raises UserError where it is not finished."""
    if on is None:
        return overrides
    from iar.services.earlier_runs import named_run

    # Only the state folder is asked for here; what needs an earlier run, such as a floor on retention, has one soon.
    run_file = load(path, [*overrides, f"run.on={STILL_TO_BE_NAMED}"], state)
    return [*overrides, f"run.on={named_run(on, run_file)}"]


def state_folder(run_file: "RunFile | None", state: Path | None) -> Path:
    """Return the state folder: of the run file, else as the command line, the environment or the default has it."""
    from iar.services.workspace import Workspace

    if run_file is not None:
        return Workspace.of(run_file).state
    return Path(state or os.environ.get("IAR_STATE") or ".iar").resolve()


def check_output(path: Path, option: str, suffix: str, *inputs: Path | None) -> None:
    """Raise UserError where an option names no file of this kind or, by whatever link, one of the inputs."""
    if path.suffix != suffix or path.is_dir():
        kind = {".yaml": "a YAML file", ".md": "a Markdown file"}[suffix]
        raise UserError(f"{option} {path}: not the name of {kind}; give one that ends in {suffix}")
    for given in inputs:
        if given and given.exists() and path.exists() and path.samefile(given):
            raise UserError(f"{option} {path}: would overwrite {given}, which it is made from; give another name")


def check_namespace(name: str) -> str:
    """Return the namespace that an option names, "" = none. Raises UserError where Kubernetes has none of this name."""
    if name and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise UserError(
            f"--namespace {name!r}: no name of a namespace; write at most 63 lower case letters, digits and dashes"
        )
    return name


def write_output(path: Path, option: str, text: str) -> None:
    """Write the file that an option names, aside and then renamed. Raises UserError where it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}; give a file that you can write") from error


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))
