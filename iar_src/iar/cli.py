"""The command line, `iar`. Everything heavy is imported by the command that needs it."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iar import __version__
from iar.cli_activities import activities, examples
from iar.cli_candidates import candidates
from iar.cli_lineage import lineage
from iar.cli_options import (
    AsJson,
    Documents,
    MaybeRunPath,
    On,
    Recipes,
    RunPath,
    Set,
    State,
    built_on,
    check_namespace,
    check_output,
    load,
    print_json,
    state_folder,
    with_recipes,
    write_output,
)
from iar.cli_platform import Host, Namespace, cost, estimated_cost, promote, reconcile, submit
from iar.cli_provenance import export, registry_app, sign, verify_signatures
from iar.cli_retraction import erase, rebuild, restore, retract, retractions
from iar.cli_verifier import verifier
from iar.errors import ExitCode, IarError, NoFeasibleCandidate, UserError

if TYPE_CHECKING:
    from iar.config import RunFile

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# Plain help: rich's takes half a second to import.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
for _command in (activities, examples, retract, retractions, restore, erase, rebuild, export):
    lineage.command()(_command)
app.add_typer(lineage, name="lineage")
app.add_typer(registry_app, name="registry")
app.add_typer(candidates, name="candidates")
app.add_typer(verifier, name="verifier")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Inject, Align, Recover: documents into a model's weights."""
    if version:
        typer.echo(__version__)


@app.command()
def run(
    run_yaml: RunPath,
    on: On = None,
    set_: Set = None,
    recipes: Recipes = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole pipeline. What is finished already is reused."""
    from iar.console import open_console, print_check, print_results, provenance
    from iar.services import doctor, local_run
    from iar.services.progress_view import terminal_view

    overrides = built_on(run_yaml, with_recipes(set_, recipes), on, state)
    run_file = load(run_yaml, overrides, state)
    notes = open_console(stderr=as_json)
    for warning in doctor.preflight(run_file):
        print_check(notes, warning)
    notes.print(f"Run {run_file.run_id} from {run_yaml}", *provenance(run_file), sep="\n", markup=False)
    try:
        with terminal_view(notes) as watch:
            result = local_run.run(run_file, watch)
    except NoFeasibleCandidate:
        _print_results_of(run_file, as_json)
        raise
    if as_json:
        print_json(_status_of(run_file))
        return
    print_results(notes, result.results)
    for line in (*provenance(run_file), _summary(result), f"Report: {result.report}"):
        notes.print(line, markup=False)
    changes = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    notes.print(f'Ask it: iar ask {run_yaml} "..."{changes}', markup=False)


def _summary(result: Any) -> str:
    from iar.services.progress_view import duration

    reused = f", {result.reused} of {result.tasks} stages reused" if result.reused else ""
    return f"Done in {duration(result.seconds)}{reused}"


@app.command("compile")
def compile_(
    run_yaml: RunPath,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="File; default NAME-pipeline.yaml.")] = None,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="As resources for GitOps.")] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", callback=check_namespace, help="Namespace in these resources.")
    ] = "",
    comment: Annotated[
        Path | None, typer.Option("--comment", metavar="FILE.md", help="Write what changes and what it costs, too.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="OLD.yaml", help="Run file before the change, for the comment.")
    ] = None,
    documents: Documents = None,
    set_: Set = None,
    recipes: Recipes = None,
) -> None:
    """Write the pipeline as Kubeflow IR YAML. The same run file gives the same bytes."""
    if namespace and not kubernetes:
        raise UserError("--namespace: IR has none; give --kubernetes with it")
    for option, value in (("--against", against), ("--documents", documents)):
        if value and not comment:
            raise UserError(f"{option}: is for a comment; give --comment with it")
    if comment:
        check_output(comment, "--comment", ".md", run_yaml, against)
    old = load(against, with_recipes(set_, recipes), None) if against else None
    run_file = load(run_yaml, with_recipes(set_, recipes), None)
    from iar.services.submission import check_backend

    if kubernetes:
        check_backend(run_file, str(run_yaml))
    from iar.pipelines.post_training import compiled_pipeline
    from iar.services.pipeline_resources import kubernetes_resources
    from iar.services.training_fit import check_pool

    check_pool(run_file)
    path = out or Path(f"{run_file.run.name}-pipeline.yaml")
    check_output(path, "--output", ".yaml", run_yaml, against)
    ir = compiled_pipeline(run_file)
    text = kubernetes_resources(run_file, ir, namespace) if kubernetes else ir
    write_output(path, "--output", text)
    typer.echo(str(path))
    if comment:
        write_output(comment, "--comment", _comment(run_file, ir, old, documents))
        typer.echo(str(comment))


def _comment(new: "RunFile", ir: str, old: "RunFile | None", documents: Path | None) -> str:
    from iar.pipelines.post_training import compiled_pipeline
    from iar.report.pull_request import comment

    try:
        cost: Any = estimated_cost(new, documents)
    except UserError as error:
        cost = str(error)
    return comment(new, ir, old, compiled_pipeline(old) if old else "", cost)


@app.command()
def status(run_yaml: MaybeRunPath = None, set_: Set = None, state: State = None, as_json: AsJson = False) -> None:
    """Show where a run stands, and its results. Without a run file: the latest run of the state folder."""
    from iar.console import open_console, print_results, print_stages

    about = _status(run_yaml, set_, state)
    if as_json:
        print_json(about)
        return
    console = open_console()
    console.print(f"Run {about['run_id']}: {about['state'].replace('_', ' ')}", markup=False)
    print_stages(console, about["stages"])
    if about["error"]:
        console.print(f"Error: {about['error'].get('message', '')}", markup=False)
    if about["results"]:
        print_results(console, about["results"])
        console.print(f"Report: {about['report']}", markup=False)


@app.command()
def report(
    run_yaml: MaybeRunPath = None,
    set_: Set = None,
    state: State = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the path of a run's HTML report."""
    about = _status(run_yaml, set_, state)
    if not about["report"]:
        raise UserError(f"run {about['run_id']} is {about['state']} and has no report yet; finish it with iar run")
    if as_json:
        print_json({"run_id": about["run_id"], "report": about["report"]})
    else:
        typer.echo(about["report"])
    if open_:
        typer.launch(Path(about["report"]).as_uri())


@app.command()
def ask(
    run_yaml: RunPath,
    question: Annotated[str | None, typer.Argument(help="Left out on a terminal: ask several.")] = None,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Ask the selected model, closed book. It sees the question and no document."""
    from iar.services.ask import open_model, picked_model

    run_file = load(run_yaml, set_, state)
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
    if question is not None and not question.strip():
        raise UserError('the question is empty; write it in quotes: iar ask RUN.yaml "Who built ...?"')
    pick, folder = picked_model(_status_of(run_file))
    typer.echo(f"{pick}, merged from {run_file.model.source}, answers from memory", err=True)
    model = open_model(folder, run_file.model.system_turn)
    if question is None:
        _converse(model)
    elif as_json:
        print_json({"model": pick, "question": question, "answer": model(question)})
    else:
        typer.echo(model(question))


@app.command()
def questions(
    run_yaml: RunPath,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many, spread by the run's seed.")] = 50,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show questions with answer and source text, to check by hand. Those of the test stay locked."""
    from iar.services.question_sample import format_questions, sample_questions

    run_file = load(run_yaml, set_, state)
    shown = sample_questions(_status_of(run_file), number, run_file.run.seed)
    if as_json:
        print_json(shown)
    else:
        typer.echo(format_questions(shown))


def _converse(model: Any) -> None:
    """Put one question after the other, each on its own, until an empty line or the end of input."""
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        if not question:
            return
        typer.echo(model(question))


@app.command()
def decontaminate(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET.jsonl", help="Rows to train on.")],
    run_yaml: Annotated[Path | None, typer.Option("--run", metavar="RUN.yaml", help="Against all of this run.")] = None,
    against: Annotated[
        list[Path] | None, typer.Option("--against", metavar="EVAL.jsonl", help="Against this file too.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Clean rows and findings.")
    ] = None,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Look for evaluated prompts in a dataset. One line an evaluation, those without a hit too."""
    from dataclasses import asdict

    from iar.services.decontamination import check_lines, decontaminate_file
    from iar.services.evaluations import file_evaluation
    from iar.services.runs import run_evaluations

    if not (run_yaml or against):
        raise UserError("decontaminate: nothing to check against; give --run RUN.yaml, or --against EVAL.jsonl")
    evaluations = run_evaluations(load(run_yaml, set_, state)) if run_yaml else []
    evaluations += [file_evaluation(path, "--against") for path in against or ()]
    found = decontaminate_file(dataset, list({one.name: one for one in evaluations}.values()), out)
    if as_json:
        print_json({"checks": list(map(asdict, found.checks)), "hits": list(map(asdict, found.hits))})
        return
    for line in check_lines(found.checks):
        typer.echo(line)
    for hit in found.hits:
        shown = f"{hit.text!r} has {hit.evaluation} {hit.prompt_id} ({hit.rule}): {hit.prompt!r}"
        sealed = f"has {hit.evaluation} {hit.prompt_id} ({hit.rule}), locked"
        typer.echo(f"line {hit.item_id}: {shown if hit.prompt else sealed}")


@app.command()
def doctor(
    run_yaml: MaybeRunPath = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Check a Kubernetes cluster instead.")] = False,
    namespace: Namespace = "",
    host: Host = "",
    s3: Annotated[
        str, typer.Option("--s3", metavar="s3://BUCKET/PREFIX", help="A store to check beside run.store.")
    ] = "",
    reap: Annotated[
        bool, typer.Option("--reap", help="Delete training jobs that a run left behind, only that.")
    ] = False,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and a run file. Exit code 2 when something fails."""
    from dataclasses import asdict

    from iar.console import open_console, print_check

    if reap and not cluster:
        raise UserError("--reap deletes jobs on a cluster; give --cluster with it")
    run_file = load(run_yaml, set_, state) if run_yaml else None
    if cluster:
        from iar.services import doctor_cluster

        looked = doctor_cluster.examine_cluster(run_file, namespace, host, s3)
        findings = doctor_cluster.reap(namespace) if reap else looked
    else:
        from iar.services.doctor import examine

        findings = examine(run_file)
    console = open_console()
    checks = []
    for check in findings:
        checks.append(check)
        if not as_json:
            print_check(console, check)
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(ExitCode.USER_ERROR)


for command in (cost, submit, reconcile, promote, sign):
    app.command()(command)
app.command("verify-signatures")(verify_signatures)


def _status(run_yaml: Path | None, overrides: list[str] | None, state: Path | None) -> dict[str, Any]:
    from iar.services.runs import find_run, read_status

    if run_yaml is not None:
        return _status_of(load(run_yaml, overrides, state))
    if overrides:
        raise UserError("--set needs the run file it changes: iar status RUN.yaml --set ...")
    folder = state_folder(None, state)
    if not any((folder / "runs").glob("*/run.json")):
        raise UserError(f"no run in {folder}; start one with iar run RUN.yaml, or name its folder with --state")
    return read_status(find_run(folder))


def _status_of(run_file: "RunFile") -> dict[str, Any]:
    from iar.services.runs import read_status
    from iar.services.workspace import Workspace

    folder = Workspace.of(run_file).run(run_file.run_id)
    if not (folder / "run.json").is_file():
        raise UserError(f"run {run_file.run_id} was never started in {folder.parent.parent}; start it with iar run")
    return read_status(folder)


def _print_results_of(run_file: "RunFile", as_json: bool) -> None:
    from iar.console import open_console, print_results

    about = _status_of(run_file)
    if as_json:
        print_json(about)
    elif about["results"]:
        print_results(open_console(), about["results"])


def main() -> None:
    """Run the command line and exit with the code that errors.py gives."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command; return its exit code. Errors are one line on stderr, without --debug."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = int(app(arguments, prog_name="iar", standalone_mode=False) or 0)
        # typer turns Ctrl-C into this code and says nothing.
        return _fail("interrupted", code) if code == INTERRUPTED else code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted; a flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except IarError as error:
        if debug:
            raise
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        return _fail(str(error), INTERRUPTED if interrupted else error.exit_code)
    except Exception as error:
        # The base class of typer's usage errors is not public; this is what sets them apart.
        if (usage := getattr(error, "format_message", None)) is not None:
            return _fail_usage(usage())
        if debug:
            raise
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(f"unexpected {message}; run again with --debug for the traceback", ExitCode.BUG)


def _fail_usage(message: str) -> int:
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return int(ExitCode.USER_ERROR)
    return _fail(f"{message.rstrip('.?')}; see iar --help", ExitCode.USER_ERROR)


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"error: {line}", file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    main()
