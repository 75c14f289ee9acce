"""What must run again after a retraction: of every run, the tasks whose results hold what was retracted."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.errors import IarError
from iar.services.earlier_sets import EarlierSets
from iar.services.registry import Registry
from iar.services.retraction import retracted_entries, retractions
from iar.services.withheld import RETRACTED, with_retractions
from iar.services.workspace import RUN_YAML, Manifest, Ref


@dataclass(frozen=True)
class RunPlan:
    """Of one run: the tasks that must run again and those whose results are reused, in the order of the first run.

    `gone`: tasks whose results are no longer there, which run again too. `seconds`: what those to run took before.
    `command`: what runs it again in a shell, "" for a run that was not started on this machine.
    """

    run_id: str
    again: tuple[str, ...]
    reused: tuple[str, ...]
    gone: tuple[str, ...]
    seconds: float
    command: str


def plan(registry: Registry, state: Path) -> list[RunPlan]:
    """Return the plan of each run of a state folder that has something to run again.

    A task is to run again where what it made was made from something retracted, or where it reads the result of such
    a task. One whose input comes out the same as before is then reused after all.
    """
    entries = retracted_entries(registry)
    tainted = registry.products(entries) | set(entries)
    retracted = {one.subject for one in retractions(registry)}
    folders = sorted(path for path in (state / "runs").glob("*/tasks") if path.is_dir())
    plans = (_plan(folder, tainted, retracted, state) for folder in folders)
    return [one for one in plans if one.again]


def _plan(tasks: Path, tainted: set[str], retracted: set[str], state: Path) -> RunPlan:
    again, reused, gone = [], [], []
    contents: set[str] = set()
    seconds = 0.0
    for name, manifest, folder in _manifests(tasks):
        if manifest is None:
            gone.append(name)
            continue
        made = {one.digest for one in manifest.outcome.lineage}
        if (
            made & tainted
            or contents & set(_inputs(manifest))
            or _reads_retracted(manifest, folder, tainted, retracted)
        ):
            again.append(name)
            contents.add(manifest.content)
            seconds += manifest.seconds
        else:
            reused.append(name)
    command = _command(tasks.parent, state)
    return RunPlan(tasks.parent.name, tuple(again), tuple(reused), tuple(gone), seconds, command)


def _reads_retracted(manifest: Manifest, folder: Path, tainted: set[str], retracted: set[str]) -> bool:
    """Tell of what the registry does not know as made by its task: a sharded build's documents, earlier sets."""
    if manifest.stage == "earlier_run":
        return any({one.checkpoint_digest, one.dataset_digest} & tainted for one in EarlierSets(folder))
    if manifest.stage != "qa_documents":
        return False
    parts = manifest.key_parts
    return set(with_retractions(parts, folder, retracted).get(RETRACTED, ())) > set(parts.get(RETRACTED, ()))


def _manifests(tasks: Path) -> Iterator[tuple[str, Manifest | None, Path]]:
    """Yield the tasks with their manifests and folders, those that were made first first."""
    found: list[tuple[float, str, Manifest, Path]] = []
    for marker in sorted(tasks.glob("*.json")):
        reference = json.loads(marker.read_text(encoding="utf-8"))["ref"]
        ref = Ref.parse(reference)
        try:
            manifest = ref.open()
        except IarError:
            yield marker.stem, None, ref.path
        else:
            found.append((manifest.started, marker.stem, manifest, ref.path))
    for _, name, manifest, folder in sorted(found, key=lambda one: one[:2]):
        yield name, manifest, folder


def _inputs(manifest: Manifest) -> list[Any]:
    return list(dict(manifest.key_parts.get("inputs", {})).values())


def _command(run: Path, state: Path) -> str:
    """Return the command that runs a run again, from the folder that it ran in: its paths may be relative to that."""
    if not (run / RUN_YAML).is_file():
        return ""
    folder = str(json.loads((run / "run.json").read_text(encoding="utf-8")).get("folder", ""))
    there = f"cd {shlex.quote(folder)} && " if folder and Path(folder) != Path.cwd() else ""
    return f"{there}iar run {shlex.quote(str(run / RUN_YAML))} --state {shlex.quote(str(state))}"
