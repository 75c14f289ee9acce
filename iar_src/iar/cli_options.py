"""Arguments and options that several commands share, and how they are read."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from iar.config import RunFile

RunPath = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="Run file.")]
MaybeRunPath = Annotated[Path | None, typer.Argument(metavar="[RUN.yaml]", help="Run file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value.")]
Recipes = Annotated[
    str | None,
    typer.Option("--recipes", metavar="A,B,...", help="Controls and baselines beside the method: sdft,replay,..."),
]
State = Annotated[Path | None, typer.Option("--state", help="State folder instead of run.state.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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


def state_folder(run_file: "RunFile | None", state: Path | None) -> Path:
    """Return the state folder: of the run file, else as the command line, the environment or the default has it."""
    from iar.services.workspace import Workspace

    if run_file is not None:
        return Workspace.of(run_file).state
    return Path(state or os.environ.get("IAR_STATE") or ".iar").resolve()


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))
