"""`iar verifier`: rules and judges before they judge, and beside people afterwards."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iar.cli_options import AsJson, RunPath, Set, State, load, print_json, write_output
from iar.errors import ExitCode, UserError

if TYPE_CHECKING:
    from iar.methods.agreement import Estimate, HumanAgreement
    from iar.records import VerifierAudit

verifier = typer.Typer(no_args_is_help=True, help="How far rules and judges can be trusted: attacks, labels, people.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A rule, such as rule:exact, or a judge of --run.")]
JudgesRun = Annotated[Path | None, typer.Option("--run", metavar="RUN.yaml", help="Run file that names the judge.")]
Questions = Annotated[
    Path | None,
    typer.Option("--questions", metavar="FILE.jsonl", help="Attack these; default: those of the labelled answers."),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN.yaml", help="Attack with wrong answers of this run's models, too."),
]
PerKind = Annotated[int, typer.Option("--number", "-n", min=1, help="Most questions attacked, by each kind.")]


@verifier.command("list")
def list_(run_yaml: JudgesRun = None, set_: Set = None, state: State = None, as_json: AsJson = False) -> None:
    """List the verifiers with their versions; what a server's judge is worth, only its audit says."""
    from iar.console import open_console, print_table
    from iar.methods.grading import RULES
    from iar.services.verifier_runs import find_judge, judge_servers

    run_file = load(run_yaml, set_, state) if run_yaml else None
    servers = judge_servers(run_file) if run_file else []
    rows = [{"verifier": name, "version": rule.version, "kind": "rule"} for name, rule in RULES.items()]
    rows += [
        {"verifier": one.name, "version": find_judge(one.name, run_file).version, "kind": f"LLM {one.weights}"}
        for one in servers
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(open_console(), ("Verifier", "Version", "Kind"), [list(row.values()) for row in rows])


@verifier.command("audit")
def audit_(
    name: Name,
    run_yaml: JudgesRun = None,
    questions: Questions = None,
    from_: From = None,
    number: PerKind = 20,
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Attack a verifier and put it before labelled answers. Exit code 2 where it may not judge."""
    from iar.config import EvaluateSection
    from iar.methods.verification import audit_json, objection
    from iar.services.verifier_runs import find_judge, own_wrong_answers, read_questions
    from iar.services.verifiers import audit, calibration_questions, make_suite

    if set_ and not run_yaml:
        raise UserError("--set needs the run file it changes; give --run RUN.yaml")
    run_file = load(run_yaml, set_, state) if run_yaml else None
    judge = find_judge(name, run_file)
    posed = read_questions(questions) if questions else calibration_questions()
    own = list(own_wrong_answers(load(from_, None, state))) if from_ else []
    found = audit(judge, make_suite(posed, number, run_file.run.seed if run_file else 0, own))
    limit = (run_file.evaluate if run_file else EvaluateSection()).max_attack_success
    reason = objection(found, limit)
    if as_json:
        print_json(audit_json(found) | {"refused": reason, "max_attack_success": limit})
    else:
        _print_audit(found)
        told = f"refused: {found.verifier} {reason}" if reason else f"admitted: {found.verifier} may judge"
        typer.echo(f"{told} ({100 * limit:g} % allowed)")
    if reason:
        raise typer.Exit(ExitCode.USER_ERROR)


def _print_audit(found: "VerifierAudit") -> None:
    from iar.console import open_console, print_table
    from iar.methods.verification import Share, attack_success, exactness, precision, recall

    console = open_console()
    console.print(f"{found.verifier}, version {found.version}, suite {found.suite[:12]}", markup=False)
    attacks = [
        [one.kind, str(one.asked), str(one.failed), str(attack_success([one])), str(attack_success([one], full=True))]
        for one in found.attacks
    ]
    overall = [attack_success(found.attacks, full) for full in (False, True)]
    asked, failed = (sum(getattr(one, name) for one in found.attacks) for name in ("asked", "failed"))
    attacks.append(["all", str(asked), str(failed), *map(str, overall)])
    print_table(console, ("Attack", "Asked", "Failed", "Above 0", "Full marks"), attacks)
    labelled = [[one.kind, str(one.answers), str(Share(one.exact, one.answers))] for one in found.calibration]
    labelled.append(["all", str(sum(one.answers for one in found.calibration)), str(exactness(found))])
    console.print("")
    print_table(console, ("Labelled answers", "Number", "Same as people"), labelled)
    console.print(f"\nPrecision {precision(found)}, recall {recall(found)}, of full marks", markup=False)


@verifier.command()
def sample(
    run_yaml: RunPath,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="LABELS.csv", help="File to write.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Most replies in it.")] = 200,
    set_: Set = None,
    state: State = None,
) -> None:
    """Write a sample of judged validation replies as CSV, for people to label: no model, no score in it."""
    from iar.services.human_labels import draw_sample, judged_replies, sample_csv
    from iar.services.verifier_runs import evaluation_folders

    run_file = load(run_yaml, set_, state)
    if out.exists():
        raise UserError(f"--output {out}: is there already, perhaps with labels; give another name")
    drawn = draw_sample(judged_replies(evaluation_folders(run_file)), number, run_file.run.seed)
    write_output(out, "--output", sample_csv(drawn))
    typer.echo(f"{out}: {len(drawn)} replies; write 0, 0.5 or 1 into the column label")


@verifier.command()
def agreement(
    run_yaml: RunPath,
    labels: Annotated[Path, typer.Argument(metavar="LABELS.csv", help="The sample, with labels.")],
    set_: Set = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Compare the judges of a run with the labels of people."""
    from dataclasses import asdict

    from iar.console import open_console, print_table
    from iar.services.human_labels import compare_with_people, judged_replies, read_labels
    from iar.services.verifier_runs import evaluation_folders

    run_file = load(run_yaml, set_, state)
    given = read_labels(labels)
    replies = judged_replies(evaluation_folders(run_file))
    found = compare_with_people(run_file, replies, given, str(labels))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    titles = ("Judge", "Labels", "Exact", "Kappa", "Fully right or not", "Quadratic weights", "Points above people")
    print_table(open_console(), titles, map(_row, found))


def _row(one: "HumanAgreement") -> list[str]:
    estimates = (one.exact, one.kappa, one.binary_kappa, one.weighted_kappa)
    return [one.judge, str(one.answers), *map(_text, estimates), _text(one.difference, 1)]


def _text(found: "Estimate", digits: int = 2) -> str:
    if found.value is None:
        return "-"
    interval = "" if found.low is None else f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return f"{found.value:.{digits}f}{interval}"
