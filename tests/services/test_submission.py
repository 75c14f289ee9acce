"""Run files on Kubeflow, against an HTTP server with KFP's own routes and models."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from iar import cli
from iar.config import RunFile
from iar.errors import TemporaryError, UserError
from iar.pipelines import post_training
from iar.services import kubeflow
from iar.services.kubeflow import Kubeflow
from iar.services.pipeline_resources import pipeline_name, version_name
from iar.services.run_files import load_run_file
from iar.services.submission import Finding, Submission, desired_runs, reconcile, submit
from tests.services.kfp_double import KfpDouble, Refused, served


@pytest.fixture
def kfp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpDouble]:
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    with served(KfpDouble()) as double:
        yield double


def run_file(name: str = "demo", **run: object) -> RunFile:
    sections = {"run": {"name": name, **run}, "documents": {"path": "/state/documents"}}
    return RunFile.model_validate(sections | {"platform": {"backend": "kubeflow"}})


def compiled(settings: RunFile) -> str:
    """A stand-in for the compiled pipeline: other run files give other text."""
    return yaml.safe_dump({"pipelineInfo": {"name": "iar", "description": "d"}, "root": settings.digest})


def send(kfp: KfpDouble, settings: RunFile, again: bool = False) -> Submission:
    return submit(settings, compiled, Kubeflow(kfp.url, "", "iar"), "iar-pipeline", again)


def test_the_same_run_file_is_the_same_run(kfp: KfpDouble) -> None:
    first, second = send(kfp, run_file()), send(kfp, run_file())

    assert (first.started, second.started, first.run.id) == (True, False, second.run.id)
    (run,), (version,), (experiment,) = kfp.runs, kfp.versions, kfp.experiments
    assert (run.display_name, run.service_account) == (run_file().run_id, "iar-pipeline")
    assert RunFile.model_validate_json(run.runtime_config.parameters["run_file"]) == run_file()
    assert version.display_name == version_name(run_file(), compiled(run_file()))
    assert run_file().digest in version.description  # the uploaded bytes
    assert experiment.display_name == "iar" and [one.display_name for one in kfp.pipelines] == ["iar-demo"]


def test_another_value_is_another_run_and_version_of_the_same_pipeline(kfp: KfpDouble) -> None:
    send(kfp, run_file())
    assert send(kfp, run_file(seed=18)).started
    assert len(kfp.runs) == len(kfp.versions) == 2 and len(kfp.pipelines) == 1


def test_a_version_that_gitops_put_there_is_used(kfp: KfpDouble) -> None:
    settings = run_file()
    made = kfp.add_version(kfp.add_pipeline(pipeline_name(settings)), version_name(settings, compiled(settings)))

    assert send(kfp, settings).run.version_id == made
    assert "upload_pipeline_version" not in kfp.calls


def test_rerun_starts_the_next_one_and_run_rerun_names_one(kfp: KfpDouble) -> None:
    run_id = run_file().run_id
    for again in (False, True, True):
        send(kfp, run_file(), again)
    assert kfp.names() == [run_id, f"{run_id}-rerun-1", f"{run_id}-rerun-2"]
    assert run_file(rerun=1).digest == run_file().digest
    assert send(kfp, run_file(rerun=1)).run.name == f"{run_id}-rerun-1" and len(kfp.runs) == 3


def test_two_runs_that_a_killed_submitter_left_are_both_told_and_one_counts(kfp: KfpDouble) -> None:
    run_id, cluster = run_file().run_id, Kubeflow(kfp.url, "", "iar")
    first = kfp.add_run(run_id, state="PENDING")
    second = kfp.add_run(run_id, state="RUNNING")
    told = f"goes on more than once; {first.run_id} counts: terminate {second.run_id} in the UI"

    def look() -> tuple[Submission, Finding]:
        (finding,) = reconcile({Path("a.yaml"): run_file()}, compiled, lambda name: cluster, "", False)
        return send(kfp, run_file()), finding

    done, finding = look()
    assert (done.started, done.run.id) == (False, first.run_id)
    assert done.drift.startswith(told) and finding.drift.startswith(told)
    kfp.run_service_terminate_run(first.run_id)
    done, finding = look()
    assert (done.run.id, done.drift) == (second.run_id, ""), "what goes on counts, not what was terminated"
    assert len(kfp.runs) == 2, "none is started and none is ended by us"


def too_large(**run: object) -> RunFile:
    """Return a run file whose training takes 655 GB of a GPU of 40 GB."""
    platform = {"backend": "kubeflow", "processes": 8, "training_engine": "ddp"}
    sections = run_file("large", **run).model_dump(mode="json") | {"platform": platform}
    return RunFile.model_validate(sections | {"model": {"source": "Qwen/Qwen3-32B"}})


def test_a_training_that_the_pool_cannot_hold_is_not_started(kfp: KfpDouble) -> None:
    with pytest.raises(UserError, match=r"40\.3 GB on NVIDIA-A100-SXM4-40GB; choose a smaller model, or 32 GPUs of 40"):
        send(kfp, too_large())
    assert not kfp.runs and not kfp.versions

    desired = {Path("a.yaml"): run_file(), Path("b.yaml"): too_large()}
    for dry_run in (True, False):
        with pytest.raises(UserError, match=r"^b\.yaml: .* takes about "):
            list(reconcile(desired, compiled, lambda name: Kubeflow(kfp.url, "", name), "", dry_run))
    assert not kfp.runs

    kfp.add_run(too_large().run_id, state="SUCCEEDED")
    assert not send(kfp, too_large()).started, "what there is already is no question any more"


def test_everything_is_found_on_the_last_page(kfp: KfpDouble) -> None:
    settings, kfp.page = run_file(), 2
    for number in range(5):
        kfp.add_run(f"{settings.run_id}-rerun-{number + 1}", state="SUCCEEDED")
    old = kfp.add_run(settings.run_id, state="FAILED")

    found = send(kfp, settings)

    assert (found.started, found.run.id, found.run.state) == (False, old.run_id, "failed")
    assert kfp.calls.count("run_service_list_runs") == 3
    assert send(kfp, settings, again=True).run.name.endswith("-rerun-6")


def test_a_run_whose_name_only_begins_alike_is_another(kfp: KfpDouble) -> None:
    for ending in ("-rerun-x", "0", "-rerun-01"):
        kfp.add_run(run_file().run_id + ending)
    assert send(kfp, run_file()).started


def test_of_two_submissions_at_once_the_older_run_stays(kfp: KfpDouble) -> None:
    def another_was_faster(operation: str) -> None:
        if operation == "run_service_create_run":
            kfp.before = lambda operation: None
            kfp.add_run(run_file().run_id)

    kfp.before = another_was_faster
    found = send(kfp, run_file())

    assert kfp.names() == [run_file().run_id] and found.run.id == kfp.runs[0].run_id
    assert "run_service_terminate_run" in kfp.calls


@pytest.mark.parametrize("seconds", [0, 1])
@pytest.mark.parametrize("ids", ["ab", "ba"])
@pytest.mark.parametrize("step", ["run_service_create_run", "pipeline_service_list_pipelines"])
def test_of_two_submissions_at_once_one_run_stays_whatever_its_time_and_id(
    kfp: KfpDouble, monkeypatch: pytest.MonkeyPatch, seconds: int, ids: str, step: str
) -> None:
    """One submission passes from its first look to its last between two steps of the other, as its only one."""
    monkeypatch.setattr(kubeflow, "YIELD_SECONDS", 0.2)
    monkeypatch.setattr(kubeflow, "LOOK_SECONDS", 0.02)
    given = iter(ids)
    kfp.new_id, kfp.seconds = lambda: next(given), seconds
    faster: list[Submission] = []

    def another_was_faster(operation: str) -> None:
        if operation == step:
            kfp.before = lambda operation: None
            faster.append(send(kfp, run_file()))

    kfp.before = another_was_faster
    slower = send(kfp, run_file())

    (run,) = kfp.runs
    assert (run.run_id, run.state) == (faster[0].run.id, "PENDING") and slower.run.id == run.run_id
    assert (faster[0].started, slower.started) == (True, False)
    assert send(kfp, run_file()).run.id == run.run_id and len(kfp.runs) == 1


@pytest.mark.parametrize("ids", ["ab", "ba"])
def test_of_two_runs_that_see_each_other_the_first_waits_for_the_second_to_go(
    kfp: KfpDouble, monkeypatch: pytest.MonkeyPatch, ids: str
) -> None:
    monkeypatch.setattr(kubeflow, "LOOK_SECONDS", 0.02)
    given, looks = iter(ids), []
    kfp.new_id, kfp.seconds = lambda: next(given), 0

    def both_are_there(operation: str) -> None:
        if operation == "run_service_list_runs" and "run_service_create_run" in kfp.calls:
            looks.append(operation)
            if len(looks) == 1:
                kfp.add_run(run_file().run_id)
            elif len(looks) == 3:  # the other has seen ours, which is the first
                kfp.runs = [run for run in kfp.runs if run.run_id == "a"]

    kfp.before = both_are_there
    assert send(kfp, run_file()).run.id == "a" and [run.run_id for run in kfp.runs] == ["a"]


def test_a_run_that_cannot_be_seen_alone_is_taken_back(kfp: KfpDouble) -> None:
    def fail(operation: str) -> None:
        if operation == "run_service_list_runs" and "run_service_create_run" in kfp.calls:
            raise Refused(503, "busy")

    kfp.before = fail
    with pytest.raises(TemporaryError, match=r"failed \(503\): busy"):
        send(kfp, run_file())
    assert kfp.runs == []


def test_pipeline_and_version_made_by_another_meanwhile_are_used(kfp: KfpDouble) -> None:
    settings = run_file()

    def another_was_faster(operation: str) -> None:
        if operation == "pipeline_service_create_pipeline":
            kfp.before = lambda operation: None
            made = kfp.add_pipeline(pipeline_name(settings))
            kfp.before = lambda operation: version_too(operation, made)

    def version_too(operation: str, pipeline: str) -> None:
        if operation == "upload_pipeline_version":
            kfp.before = lambda operation: None
            kfp.add_version(pipeline, version_name(settings, compiled(settings)))

    kfp.before = another_was_faster
    assert send(kfp, settings).started
    assert len(kfp.pipelines) == len(kfp.versions) == 1


def test_a_token_replaced_in_its_file_is_taken_up_between_two_pages(kfp: KfpDouble, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    kfp.tokens, kfp.page = {"first"}, 1
    for number in range(3):
        kfp.add_run(f"{run_file().run_id}-rerun-{number + 1}")

    def expire(operation: str) -> None:
        if operation == "run_service_list_runs":
            kfp.tokens = {"second"}
        if operation == "unauthorized":
            (tmp_path / "token").write_text("second")

    kfp.before = expire
    assert send(kfp, run_file()).started
    assert len(kfp.runs) == 4


def test_an_expired_token_is_one_line_with_its_file(kfp: KfpDouble, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    kfp.tokens = {"new"}

    with pytest.raises(UserError) as refused:
        send(kfp, run_file())

    assert str(refused.value) == (
        f"KFP at {kfp.url} refuses the token (401): expired or for another audience; "
        f"renew the file {tmp_path / 'token'} (KF_PIPELINES_SA_TOKEN_PATH)"
    )


@pytest.mark.parametrize(
    ("status", "error", "line"),
    [
        (403, UserError, r"forbids it \(403\): not yours; ask for the right, or check --namespace"),
        (400, UserError, r"refuses the request \(400\): not yours; check --host and version"),
        (503, TemporaryError, r"failed \(503\): not yours; repeat the command later"),
    ],
)
def test_what_the_server_refuses_is_one_line(kfp: KfpDouble, status: int, error: type[Exception], line: str) -> None:
    def refuse(operation: str) -> None:
        raise Refused(status, "not yours")

    kfp.before = refuse
    with pytest.raises(error, match=line) as refused:
        send(kfp, run_file())
    assert "\n" not in str(refused.value)


PAGE = ("text/html; charset=utf-8", b"<!doctype html><title>Log in</title> run_id multi_user runs experiments")
KFP_CALLS = (
    "experiment_service_list_experiments", "experiment_service_create_experiment", "pipeline_service_list_pipelines",
    "pipeline_service_create_pipeline", "pipeline_service_list_pipeline_versions", "upload_pipeline_version",
    "run_service_create_run", "run_service_list_runs",
)  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (PAGE, r"a page \(text/html\), probably a login"),
        (("text/html", b"caf\xe9"), "bytes that are no text"),
        (("application/json", b"[]"), r"a page \(application/json\)"),
        (("application/json", b'{"hello": "world"}'), r"JSON that is not KFP's \(hello\)"),
    ],
)
@pytest.mark.parametrize("step", [*KFP_CALLS, ""])
def test_an_answer_that_is_not_kfps_is_one_line_at_each_step(
    kfp: KfpDouble, tmp_path: Path, raw: tuple[str, bytes], said: str, step: str
) -> None:
    def log_out(operation: str) -> None:
        if operation == step:
            kfp.raw = raw

    kfp.before, kfp.raw = log_out, None if step else raw
    (tmp_path / "token").write_text("t")
    with pytest.raises(UserError, match=rf"^KFP at \S+ answers with {said}.*; set the token .*token \(KF_") as refused:
        send(kfp, run_file())
    assert "\n" not in str(refused.value)


def test_an_answer_of_another_kfp_that_cannot_be_read_is_one_line(kfp: KfpDouble) -> None:
    kfp.add_run("x")

    def another(operation: str) -> None:
        if operation == "run_service_list_runs":
            kfp.raw = ("application/json", b'{"runs": 5}')

    kfp.before = another
    with pytest.raises(
        UserError, match=r"a V2beta1ListRunsResponse that kfp here cannot read \(.* as new as the server"
    ):
        send(kfp, run_file())


def test_an_answer_without_what_kfp_always_says_is_one_line(kfp: KfpDouble) -> None:
    kfp.experiment_service_create_experiment = lambda body: {"display_name": "iar"}  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"answers without experiment_id; check --host, and that it is KFP 2"):
        send(kfp, run_file())


@pytest.mark.parametrize(
    ("token", "what"),
    [(b"", "is empty"), (b"\xff", "is not text"), (b"two words", "holds more than one word of ASCII")],
)
def test_a_token_file_without_a_token_is_one_line(kfp: KfpDouble, tmp_path: Path, token: bytes, what: str) -> None:
    (tmp_path / "token").write_bytes(token)
    with pytest.raises(UserError) as refused:
        send(kfp, run_file())
    file = f"the file {tmp_path / 'token'} (KF_PIPELINES_SA_TOKEN_PATH)"
    assert str(refused.value) == f"{file} {what}, hence no token; write the token into it"


@pytest.mark.parametrize(
    "host", ["http://me:s3cret@127.0.0.1:9", "http://me:s3@cret@127.0.0.1:9", "me:s3cret@kubeflow", "ftp://me:s3cret@k"]
)
def test_a_password_in_the_hosts_url_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(post_training, "compiled_pipeline", compiled)
    write(tmp_path, "a.yaml", run_file("a"))
    codes = [cli.call([*command, "--host", host]) for command in (["submit", str(tmp_path / "a.yaml")],
             ["reconcile", str(tmp_path)], ["doctor", "--cluster"])]  # fmt: skip
    assert 0 not in codes
    shown = "".join(capsys.readouterr())
    assert "***@" in shown and ":s3" not in shown and "cret" not in shown


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TemporaryError, match=r"^KFP at http://127.0.0.1:9 does not answer \(.*refused\); check --host"):
        submit(run_file(), compiled, Kubeflow("http://127.0.0.1:9", "", "iar"), "")


def write(folder: Path, file: str, settings: RunFile) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(yaml.safe_dump(json.loads(settings.canonical())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write(tmp_path / "runs", f"{name}.yaml", run_file(name))
    return tmp_path / "runs"


@pytest.fixture
def look(kfp: KfpDouble, folder: Path) -> Callable[..., list[Finding]]:
    """Reconcile the folder once."""

    def reconcile_now(dry_run: bool = False) -> list[Finding]:
        return list(reconcile(desired_runs(folder), compiled, lambda name: Kubeflow(kfp.url, "", name), "", dry_run))

    return reconcile_now


Look = Callable[..., list[Finding]]


def test_reconcile_starts_each_run_file_once(kfp: KfpDouble, look: Look) -> None:
    names = [run_file(name).run_id for name in ("a", "b")]

    assert [(one.run, one.action) for one in look(dry_run=True)] == [(name, "start") for name in names]
    assert kfp.runs == kfp.pipelines == kfp.experiments == []
    assert [(one.file, one.run, one.action) for one in look()] == [
        ("a.yaml", names[0], "started"),
        ("b.yaml", names[1], "started"),
    ]
    assert [(one.state, one.action, one.drift) for one in look()] == [("pending", "", ""), ("pending", "", "")]
    assert kfp.names() == names


def test_a_changed_line_starts_the_new_run_and_reports_the_old(kfp: KfpDouble, look: Look, folder: Path) -> None:
    look()
    old = run_file("a").run_id
    write(folder, "a.yaml", run_file("a", seed=18))

    findings = look()

    assert [one.action for one in findings] == ["started", "", ""]
    assert (findings[-1].run, findings[-1].drift) == (old, "runs without a run file here; terminate it in the UI")


def test_a_failed_run_is_drift_until_its_rerun_is_raised(kfp: KfpDouble, look: Look, folder: Path) -> None:
    look()
    kfp.runs[0].state = "FAILED"
    assert look()[0].drift == "failed; raise run.rerun to 1 to start it again"
    assert len(kfp.runs) == 2

    write(folder, "a.yaml", run_file("a", rerun=1))

    assert [one.action for one in look()] == ["started", ""]
    assert [one.action for one in look()] == ["", ""]
    assert kfp.names()[-1] == f"{run_file('a').run_id}-rerun-1"


def test_a_run_of_other_code_is_drift_and_not_started_again(kfp: KfpDouble, look: Look) -> None:
    look()
    kfp.runs[1].pipeline_version_reference.pipeline_version_id = "older"
    line = "started from another compiled version than this iar makes; raise run.rerun to 1 to start it again"
    assert [one.drift for one in look()] == ["", line]
    assert len(kfp.runs) == 2


def test_a_run_that_goes_on_in_the_experiment_of_before_is_reported(kfp: KfpDouble, look: Look, folder: Path) -> None:
    look()
    old = run_file("a").run_id
    data = json.loads(run_file("a").canonical())
    data["register"]["experiment"] = "handbook"
    (folder / "a.yaml").write_text(yaml.safe_dump(data))
    kfp.add_run("c-0123456789", "another folder's experiment")  # of a run file that others look after
    kfp.add_run(f"{old[:-10]}0123456789", "ended", state="SUCCEEDED")
    kfp.page = 1

    findings = look()

    assert [one.action for one in findings] == ["started", "", ""]
    line = "runs without a run file here; terminate it in the UI"
    assert [(one.run, one.drift) for one in findings if one.drift] == [(old, line)]

    (folder / "b.yaml").unlink()  # nothing else in the folder is in the old experiment now

    line = "runs in another experiment than its run file's; terminate it in the UI"
    assert [(one.run, one.drift) for one in look() if one.drift] == [(old, line)]


@pytest.mark.parametrize("suffix", [".yml", ".YAML", ".Yml"])
def test_run_files_are_known_by_either_ending(kfp: KfpDouble, look: Look, folder: Path, suffix: str) -> None:
    (folder / "a.yaml").rename(folder / f"a{suffix}")
    (folder / "README.md").write_text("no run file")
    assert [(one.file, one.action) for one in look()] == [(f"a{suffix}", "started"), ("b.yaml", "started")]


def test_runs_of_others_in_the_experiment_are_left_alone(kfp: KfpDouble, look: Look) -> None:
    look()
    kfp.add_run("somebody's notebook")
    kfp.add_run("old-0123456789", state="SUCCEEDED")
    assert len(look()) == 2


def test_a_folder_is_taken_whole_or_not_at_all(folder: Path) -> None:
    write(folder, "c.yaml", run_file("a"))
    (folder / "d.yaml").write_text("run: {name: D}\ndocuments: {path: x}\n")
    (folder / "e.yaml").write_text("run: {name: e}\ndocuments: {path: x}\n")

    with pytest.raises(UserError) as refused:
        desired_runs(folder)

    bad, local, twice = str(refused.value).splitlines()
    assert bad.startswith(f"{folder / 'd.yaml'}:1: run.name: ")
    assert local.startswith(f"{folder / 'e.yaml'}: platform.backend: 'local' is run by iar run; set kubeflow")
    assert twice.startswith(f"{folder / 'c.yaml'}: the same run as {folder / 'a.yaml'}; delete one")
    with pytest.raises(UserError, match=r"no run file \(\*\.yaml, \*\.yml\) there"):
        desired_runs(folder / "nothing")


def test_the_commands_print_one_line_a_run_and_json(
    kfp: KfpDouble, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_training, "compiled_pipeline", compiled)
    path = folder / "a.yaml"
    options = ["--host", kfp.url]
    run_id = load_run_file(path).run_id

    assert cli.call(["submit", str(path), *options]) == 0
    assert capsys.readouterr().out == f"Run {run_id} started\n{kfp.url}/#/runs/details/{kfp.runs[0].run_id}\n"
    assert cli.call(["submit", str(path), "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["started"], told["run"]["name"], told["run"]["state"]) == (False, run_id, "pending")
    assert cli.call(["reconcile", str(folder), "--dry-run", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"a.yaml: {run_id} pending",
        f"b.yaml: {run_file('b').run_id} would start",
    ]
    assert cli.call(["reconcile", str(folder), "--json", *options]) == 0
    assert [one["action"] for one in json.loads(capsys.readouterr().out)] == ["", "started"]
    assert cli.call(["submit", str(path), "--set", "platform.backend=local", *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: platform.backend: 'local' is run by iar run")
