"""Commands of a platform: cost and start of runs, a folder of run files as the desired state, promotion of a model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iar.cli_options import (
    AsJson,
    Documents,
    Recipes,
    RunPath,
    Set,
    State,
    check_namespace,
    check_output,
    load,
    print_json,
    state_folder,
    with_recipes,
    write_output,
)
from iar.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iar.config import RunFile
    from iar.services.cost import Estimate, Reached
    from iar.services.cost_actuals import Actual
    from iar.services.promotion import Promotion
    from iar.services.submission import Finding

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run files, *.yaml or *.yml.")]
Host = Annotated[
    str, typer.Option("--host", envvar="KF_PIPELINES_ENDPOINT", help="URL of Kubeflow Pipelines; default in-cluster.")
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        envvar="IAR_NAMESPACE",
        callback=check_namespace,
        help="Namespace of the runs, where KFP has several users.",
    ),
]
Account = Annotated[str, typer.Option("--service-account", help="Account of the tasks; default the server's own.")]
Rerun = Annotated[bool, typer.Option("--rerun", help="Start it once more although there is a run of it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be started, and start nothing.")]

Alias = Annotated[str, typer.Option("--alias", metavar="NAME", help="Alias of the model that serves.")]
Expect = Annotated[
    str | None,
    typer.Option("--expect", metavar="VERSION", help="Version the alias must stand at now; none = it is new."),
]
TestReused = Annotated[
    bool, typer.Option("--test-reused", help="Accept a test that other models had taken before; the tags say so.")
]
DecidedBy = Annotated[str, typer.Option("--by", metavar="NAME", help="The person who decides, to be on record.")]
Rollback = Annotated[bool, typer.Option("--rollback", help="Back to what the alias was before its last promotion.")]
Kserve = Annotated[
    Path | None,
    typer.Option("--kserve", metavar="FILE.yaml", help="Write the InferenceService that serves what the alias is at."),
]
TrainingShare = Annotated[
    float,
    typer.Option("--training-share", min=0.001, max=1.0, help="Share of the GPU's peak that training reaches."),
]
GenerationShare = Annotated[
    float,
    typer.Option("--generation-share", min=0.001, max=1.0, help="Share of the GPU's peak that generation reaches."),
]
History = Annotated[bool, typer.Option("--history", help="Show the moves of the alias and change nothing.")]


def cost(
    run_yaml: RunPath,
    documents: Documents = None,
    training_share: TrainingShare = 0.35,
    generation_share: GenerationShare = 0.03,
    set_: Set = None,
    recipes: Recipes = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what a run takes: tokens, GPU-hours, LLM tokens of each task; what is finished stands beside it."""
    from iar.report.cost_table import cost_json
    from iar.services.cost import Reached
    from iar.services.cost_actuals import actuals

    run_file = load(run_yaml, with_recipes(set_, recipes), state)
    reached = Reached(training_share, generation_share)
    estimated, done = estimated_cost(run_file, documents, reached), actuals(run_file)
    if as_json:
        print_json(cost_json(estimated, done))
    else:
        _print_cost(estimated, done)


def estimated_cost(run_file: "RunFile", documents: Path | None, reached: "Reached | None" = None) -> "Estimate":
    """Return the estimate of a run file; `documents` is a copy of its documents, None = they are where it says.

    Raises UserError where documents or model cannot be seen from here.
    """
    from iar.services.cost import REACHED, estimate
    from iar.services.cost_actuals import built_data
    from iar.services.workload import workload

    try:
        return estimate(run_file, workload(run_file, built_data(run_file), documents), reached or REACHED)
    except UserError as error:
        line, key = str(error), "documents.path"
        if not line.startswith(key):
            raise
        if documents is None:
            raise UserError(f"{line}; for an estimate here, name a copy with --documents FOLDER") from error
        raise UserError(line.replace(key, "--documents")) from error


def _print_cost(estimated: "Estimate", done: "Mapping[str, Actual]", stderr: bool = False) -> None:
    from iar.console import open_console, print_table
    from iar.report.cost_table import headline, lines_of, rows, titles

    console = open_console(stderr)
    print_table(console, titles(done), rows(estimated, done), bold=len(estimated.tasks))
    for line in (headline(estimated), *lines_of(estimated)):
        console.print(line, markup=False)


def submit(
    run_yaml: RunPath,
    host: Host = "",
    namespace: Namespace = "",
    service_account: Account = "",
    rerun: Rerun = False,
    documents: Documents = None,
    set_: Set = None,
    recipes: Recipes = None,
    as_json: AsJson = False,
) -> None:
    """Start a run on Kubeflow, unless there is one of this run file already."""
    from iar.services.kubeflow import Kubeflow
    from iar.services.submission import check_backend
    from iar.services.submission import submit as submit_run

    run_file = load(run_yaml, with_recipes(set_, recipes), None)
    check_backend(run_file, str(run_yaml))
    from iar.pipelines.post_training import compiled_pipeline

    _announce_cost(run_file, documents)
    cluster = Kubeflow(host, namespace, run_file.register.experiment)
    done = submit_run(run_file, compiled_pipeline, cluster, service_account, rerun)
    if as_json:
        print_json(asdict(done))
        return
    run = done.run
    step = "started" if done.started else f"is there already, {run.state}; --rerun starts it once more"
    typer.echo(f"Run {run.name} {step}\n{cluster.host}/#/runs/details/{run.id}")
    if done.drift:
        typer.echo(f"Run {run.name} {done.drift}", err=True)


def _announce_cost(run_file: "RunFile", documents: Path | None) -> None:
    """Say on stderr what the run will take; that it cannot be known from here stops nobody."""
    try:
        _print_cost(estimated_cost(run_file, documents), {}, stderr=True)
    except UserError as error:
        typer.echo(f"Cost: not estimated: {error}", err=True)


def reconcile(
    folder: Folder,
    host: Host = "",
    namespace: Namespace = "",
    service_account: Account = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start every run file of a folder that has no run on Kubeflow yet, and report where the two differ."""
    from iar.services.kubeflow import Kubeflow
    from iar.services.submission import desired_runs
    from iar.services.submission import reconcile as reconcile_folder

    desired = desired_runs(folder)
    from iar.pipelines.post_training import compiled_pipeline

    findings = []
    for finding in reconcile_folder(
        desired, compiled_pipeline, lambda experiment: Kubeflow(host, namespace, experiment), service_account, dry_run
    ):
        findings.append(asdict(finding))
        if not as_json:
            typer.echo(_finding_line(finding))
    if as_json:
        print_json(findings)


def _finding_line(finding: "Finding") -> str:
    """Return a finding in one line: what was done, or how the run stands, and the drift behind it."""
    stands = {"started": "started", "start": "would start"}.get(finding.action, finding.state)
    file = f"{finding.file}: " if finding.file else ""
    return f"{file}{finding.run} {stands}" + (f"  -> {finding.drift}" if finding.drift else "")


def promote(
    run_yaml: RunPath,
    alias: Alias = "champion",
    expect: Expect = None,
    test_reused: TestReused = False,
    rollback: Rollback = False,
    history: History = False,
    by: DecidedBy = "",
    kserve: Kserve = None,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Let the serving alias in MLflow point at a finished run's model, if it passes every gate."""
    from iar.services import promotion

    if rollback and history:
        raise UserError("--rollback and --history exclude each other; give one of them")
    if history and kserve:
        raise UserError("--history and --kserve exclude each other: history changes nothing and serves nothing")
    if kserve:
        check_output(kserve, "--kserve", ".yaml", run_yaml)
    run_file = load(run_yaml, set_, state)
    if history:
        _show_history(run_file, alias, as_json)
        return
    moved = (
        promotion.rollback(run_file, alias, expect, serve=kserve is not None, by=by)
        if rollback
        else promotion.promote(run_file, alias, expect, test_reused, serve=kserve is not None, by=by)
    )
    if kserve:
        _write_service(kserve, run_file, moved)
    if as_json:
        print_json(asdict(moved))
        return
    from iar.console import open_console, print_check

    console = open_console()
    for check in moved.gates:
        print_check(console, check)
    step = "stands at" if moved.version == moved.before else f"moved from version {moved.before or 'none'} to"
    console.print(f"{moved.model}@{moved.alias} {step} version {moved.version}, run {moved.run_id}", markup=False)


def _write_service(path: Path, run_file: "RunFile", moved: "Promotion") -> None:
    import yaml

    from iar.services.serving import inference_service

    about = {"iar/model-version": moved.version, "iar/run-id": moved.run_id}
    service = inference_service(run_file, moved.alias, moved.storage, about)
    write_output(path, "--kserve", yaml.safe_dump(service, sort_keys=False))


def _show_history(run_file: "RunFile", alias: str, as_json: bool) -> None:
    from iar.services.promotion import history

    moves = history(run_file, alias)
    if as_json:
        print_json(moves)
        return
    if not moves:
        place = run_file.register.registry_url or state_folder(run_file, None)
        typer.echo(f"{run_file.register.model_name}@{alias} has never moved, says the registry in {place}")
        return
    from datetime import UTC, datetime

    from iar.console import open_console, print_table

    rows = [
        [
            datetime.fromtimestamp(float(move["time"]), UTC).strftime("%Y-%m-%d %H:%M"),
            *(str(move[key]) or "none" for key in ("kind", "before", "version", "run_id")),
        ]
        for move in moves
    ]
    print_table(open_console(), ("Time (UTC)", "Move", "From", "To", "Run"), rows)
