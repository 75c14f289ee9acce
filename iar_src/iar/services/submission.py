"""Run files on Kubeflow: the same run file is the same run, whoever submits it and how often."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from iar.config import RunFile
from iar.errors import UserError
from iar.services.cluster_places import out_of_reach
from iar.services.kubeflow import LOST, RERUN, ClusterRun, Kubeflow, run_name
from iar.services.pipeline_resources import pipeline_name, version_name
from iar.services.run_files import load_run_file
from iar.services.training_fit import check_pool, pool_refusal

SUFFIXES = (".yaml", ".yml")
Compile = Callable[[RunFile], str]

OURS = re.compile(rf"(?P<run_id>(?P<name>.+)-[0-9a-f]{{10}})(?:{RERUN}[1-9]\d*)?")


@dataclass(frozen=True)
class Submission:
    """Where a run file stands: the run, whether this call started it, its compiled version.

    `drift` says in which way the cluster is not as it should be.
    """

    run: ClusterRun
    started: bool
    version: str
    drift: str = ""


@dataclass(frozen=True)
class Finding:
    """One line of a reconciliation: a run file and its run, or a run that no run file asks for (`file` is "").

    `action` is started, start (dry run) or "". `drift` says in which way the cluster is not what the folder says.
    """

    file: str
    run: str
    state: str
    action: str
    drift: str


def submit(run_file: RunFile, compile_ir: Compile, cluster: Kubeflow, account: str, again: bool = False) -> Submission:
    """Start the run of a run file on Kubeflow, or return the one there is; with `again` start a further one.

    Raises UserError for a run file that is not meant for Kubeflow, or whose training does not fit the pool's GPUs.
    """
    check_backend(run_file, "the run file")
    ir = compile_ir(run_file)
    attempts = cluster.attempts(run_file.run_id)
    number = max(attempts, default=-1) + 1 if again else run_file.run.rerun
    if number in attempts:
        run = attempts[number]
        return Submission(run, False, version_name(run_file, ir), _twice(run, cluster))
    check_pool(run_file)
    return _start(run_file, ir, number, cluster, account)


def _start(run_file: RunFile, ir: str, number: int, cluster: Kubeflow, account: str) -> Submission:
    name = version_name(run_file, ir)
    with _as_file(ir) as path:
        version = cluster.version(pipeline_name(run_file), name, path)
    start = cluster.start(run_name(run_file.run_id, number), version, run_file.canonical(), account)
    return Submission(start.run, start.ours, name)


def check_backend(run_file: RunFile, where: str) -> None:
    """Raise UserError where the run file says that it runs on this machine, or names what only this machine has."""
    if run_file.platform.backend != "kubeflow":
        raise UserError(
            f"{where}: platform.backend: 'local' is run by iar run; set kubeflow, and state, model and documents to "
            "places that the cluster has"
        )
    if lines := [f"{where}: {line}" for line in out_of_reach(run_file)]:
        raise UserError("\n".join(lines))


def desired_runs(folder: Path) -> dict[Path, RunFile]:
    """Return the run files (*.yaml, *.yml) of a folder in the order of names.

    Raises UserError with every problem of all of them, one a line: a folder is taken whole or not at all.
    """
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise UserError(f"{folder}: no run file (*.yaml, *.yml) there; give the folder that holds them")
    found: dict[Path, RunFile] = {}
    problems: list[str] = []
    for path in paths:
        try:
            found[path] = load_run_file(path)
            check_backend(found[path], str(path))
        except UserError as error:
            problems += str(error).splitlines()
    owners: dict[str, Path] = {}
    for path, run_file in found.items():
        if (owner := owners.setdefault(run_file.run_id, path)) != path:
            problems.append(f"{path}: the same run as {owner}; delete one, or raise run.rerun to run it again")
    if problems:
        raise UserError("\n".join(problems))
    return found


def reconcile(
    desired: Mapping[Path, RunFile],
    compile_ir: Compile,
    open_cluster: Callable[[str], Kubeflow],
    account: str,
    dry_run: bool,
) -> Iterator[Finding]:
    """Start what is desired and has no run yet; yield a finding a run file, then one a run that none asks for.

    `open_cluster` opens an experiment by name. What runs, failed or was started from other code is reported and
    never started again: a person raises `run.rerun`. Raises UserError, and starts nothing, with every run file to be
    started whose training does not fit its pool's GPUs, one a line.
    """
    clusters = {name: open_cluster(name) for name in dict.fromkeys(one.register.experiment for one in desired.values())}
    refused = [
        f"{path}: {said}"
        for path, run_file in desired.items()
        if (said := pool_refusal(run_file))
        and run_file.run.rerun not in clusters[run_file.register.experiment].attempts(run_file.run_id)
    ]
    if refused:
        raise UserError("\n".join(refused))
    for path, run_file in desired.items():
        yield _reconcile_one(path, run_file, compile_ir, clusters[run_file.register.experiment], account, dry_run)
    run_ids = {run_file.run_id for run_file in desired.values()}
    here = [run for cluster in clusters.values() for run in cluster.runs()]
    yield from _strangers(here, run_ids, "runs without a run file here; terminate it in the UI")
    # In other experiments, which other folders may fill, only runs of the same name are taken for ours.
    names = {run_file.run.name: clusters[run_file.register.experiment] for run_file in desired.values()}
    for name, cluster in names.items():
        moved = [run for run in cluster.runs(f"{name}-", everywhere=True) if run not in here and _is_of(run, name)]
        yield from _strangers(moved, run_ids, "runs in another experiment than its run file's; terminate it in the UI")


def _reconcile_one(
    path: Path, run_file: RunFile, compile_ir: Compile, cluster: Kubeflow, account: str, dry_run: bool
) -> Finding:
    ir, number = compile_ir(run_file), run_file.run.rerun
    attempts = cluster.attempts(run_file.run_id)
    if number in attempts:
        run = attempts[number]
        return Finding(path.name, run.name, run.state, "", _drift(run, run_file, ir, cluster))
    name = run_name(run_file.run_id, number)
    if dry_run:
        return Finding(path.name, name, "", "start", "")
    done = _start(run_file, ir, number, cluster, account)
    return Finding(path.name, done.run.name, done.run.state, "started" if done.started else "", "")


def _drift(run: ClusterRun, run_file: RunFile, ir: str, cluster: Kubeflow) -> str:
    fix = f"raise run.rerun to {run_file.run.rerun + 1} to start it again"
    if twice := _twice(run, cluster):
        return twice
    if run.state in LOST:
        return f"{run.state}; {fix}"
    now = cluster.version_id(pipeline_name(run_file), version_name(run_file, ir))
    if run.version_id and run.version_id != now:
        return f"started from another compiled version than this iar makes; {fix}"
    return ""


def _twice(run: ClusterRun, cluster: Kubeflow) -> str:
    """Return that a run goes on more than once; a person ends one, as a job that both follow ends with it."""
    if not (run.active and (twins := cluster.twins(run))):
        return ""
    ids = ", ".join(one.id for one in twins)
    return f"goes on more than once; {run.id} counts: terminate {ids} in the UI"


def _strangers(runs: Sequence[ClusterRun], run_ids: set[str], drift: str) -> Iterator[Finding]:
    """Yield the runs of ours that have not ended and that no run file asks for."""
    for run in runs:
        named = OURS.fullmatch(run.name)
        if run.active and named and named["run_id"] not in run_ids:
            yield Finding("", run.name, run.state, "", drift)


def _is_of(run: ClusterRun, name: str) -> bool:
    """Return whether a run is one of run files of this name."""
    named = OURS.fullmatch(run.name)
    return bool(named and named["name"] == name)


@contextmanager
def _as_file(ir: str) -> Iterator[Path]:
    with TemporaryDirectory(prefix="iar-ir-") as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(ir, encoding="utf-8")
        yield path
