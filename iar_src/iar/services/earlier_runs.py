"""A finished run that another is built on: named at the command line, found in the state folder, checked."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from iar.config import BUILT_ON, RunFile
from iar.errors import IarError, UserError
from iar.services.checkpoints import recorded_digest
from iar.services.registry import Registry
from iar.services.retraction import taints
from iar.services.run_files import load_run_file
from iar.services.training_report import dataset_digest
from iar.services.workspace import Manifest, Ref, Workspace

OPTION, KEY = "--on", "run.on"
SYSTEM_TURN = "model.system_turn"


@dataclass(frozen=True)
class EarlierRun:
    """The artifacts of a finished run: theta_0, the questions, theta_IA with its manifest.

    `before` has the sets that it was built on itself, None where it started from theta_0.
    """

    run_id: str
    base: Path
    data: Path
    tuned: Path
    training: Manifest
    before: Path | None

    @property
    def checkpoint(self) -> Path:
        """The folder of theta_IA."""
        return self.tuned / "checkpoint"


def named_run(place: str, run_file: RunFile) -> str:
    """Return what `run.on` says of the run that `--on` names: a run file, a run's folder, or its id or a beginning.

    Raises UserError where the state folder of `run_file` has no such run, or it is not finished.
    """
    workspace = Workspace.of(run_file)
    run_id = _run_id(place, workspace)
    return f"{run_id}@{recorded_digest(find_earlier(workspace, run_id, OPTION).checkpoint)}"


def earlier_run(run_file: RunFile, workspace: Workspace) -> EarlierRun:
    """Return the run that `run.on` names. Raises UserError where it is not there, or has other weights now."""
    named = re.fullmatch(BUILT_ON, run_file.run.on)
    assert named, "checked by the run file"
    found = find_earlier(workspace, named["run"], KEY)
    digest = recorded_digest(found.checkpoint)
    if digest != named["digest"]:
        raise UserError(
            f"{KEY}: theta_IA of run {found.run_id} is {digest[:12]} now, not {named['digest'][:12]}: it was trained "
            f"again; leave {KEY} out and give {OPTION} {found.run_id}, which makes a run of its own"
        )
    return found


def find_earlier(workspace: Workspace, run_id: str, where: str) -> EarlierRun:
    """Return a finished run of the state folder. Raises UserError, beginning with `where`, for any other."""
    folder = workspace.run(run_id)
    if not (folder / "tasks").is_dir():
        raise UserError(f"{where}: no run {run_id} in {workspace.state}; {_known(workspace)}")
    _artifact(folder, "register", where)  # the last task of a run
    base, data, tuned = (_artifact(folder, task, where)[0] for task in ("base-model", "qa-build", "align"))
    built_on = (folder / "tasks" / "earlier-run.json").is_file()
    before = _artifact(folder, "earlier-run", where)[0] if built_on else None
    return EarlierRun(run_id, base, data, tuned, _artifact(folder, "align", where)[1], before)


def check_fits(found: EarlierRun, base: Path, run_file: RunFile) -> None:
    """Raise UserError where a run has another theta_0, or was trained with another system turn, than this one."""
    theirs, ours = recorded_digest(found.base), recorded_digest(base)
    if theirs != ours:
        raise UserError(
            f"{KEY}: run {found.run_id} began with a theta_0 of weights {theirs[:12]}, this one has {ours[:12]}; both "
            "are merged with one theta_0: give model.source the model of that run"
        )
    turn = found.training.key_parts["settings"][SYSTEM_TURN]
    if turn != run_file.model.system_turn:
        raise UserError(
            f"{KEY}: run {found.run_id} was trained with {SYSTEM_TURN} {turn!r}, this one has "
            f"{run_file.model.system_turn!r}; what it retains could not be told: write the same in both"
        )


def check_standing(found: EarlierRun, registry: Registry) -> None:
    """Raise UserError where a run is not in the registry, or its theta_IA was made from something retracted."""
    digest = recorded_digest(found.checkpoint)
    if missing := {digest, dataset_digest(found.data)} - registry.labels([digest, dataset_digest(found.data)]).keys():
        raise UserError(
            f"{KEY}: {min(missing)[:12]} of run {found.run_id} is not in this run's registry; set "
            "register.registry_url to the one that run was recorded in"
        )
    for retraction in taints(registry, digest).values():
        raise UserError(
            f"{KEY}: theta_IA of run {found.run_id} was made from {retraction.id}, which is retracted "
            f"({retraction.reason}); run that run file again without it, then this one with {OPTION}"
        )


def _run_id(place: str, workspace: Workspace) -> str:
    path = Path(place)
    if path.suffix in (".yaml", ".yml"):
        return load_run_file(path).run_id
    if (path / "tasks").is_dir():
        if path.resolve() != workspace.run(path.resolve().name).resolve():
            raise UserError(
                f"{OPTION} {place}: is a run of another state folder than {workspace.state}; give both runs one "
                "run.state, or --state"
            )
        return path.resolve().name
    found = sorted(run.name for run in _runs(workspace) if run.name.startswith(place)) if place else []
    if place in found:
        return place
    if len(found) != 1:
        several = f"fits {', '.join(found)}" if found else f"no run file and no run in {workspace.state}"
        raise UserError(f"{OPTION} {place}: {several}; {_known(workspace)}")
    return found[0]


def _artifact(run: Path, task: str, where: str) -> tuple[Path, Manifest]:
    marker = run / "tasks" / f"{task}.json"
    if not marker.is_file():
        raise UserError(f"{where}: run {run.name} is not finished, it lacks {task}; run its run file to the end first")
    ref = Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"])
    try:
        return ref.path, ref.open()
    except IarError as error:
        raise UserError(f"{where}: run {run.name}: {error}") from error


def _runs(workspace: Workspace) -> list[Path]:
    return sorted(path.parent for path in (workspace.state / "runs").glob("*/tasks"))


def _known(workspace: Workspace) -> str:
    return f"runs there: {', '.join(run.name for run in _runs(workspace)) or 'none'}"
