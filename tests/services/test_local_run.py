"""The pipeline through kfp.local with stages that take no time: order, reuse, errors, interrupts, locks."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iar.config import ModelSection, RunFile, SelectSection
from iar.errors import IarError, NoFeasibleCandidate, PermanentError, TemporaryError, UserError
from iar.services import local_run
from iar.services.guards import kfp_mended
from iar.services.lineage_activities import activities
from iar.services.local_run import RunResult
from iar.services.progress import Event
from iar.services.registry import Registry
from iar.services.run_files import load_run_file
from iar.services.runs import find_run, read_status
from iar.services.workspace import Workspace

TASKS = 13  # with two shards
DUMMIES = Path(__file__).parent / "dummy_stages"


class World:
    """A run file whose components run the stand-ins in dummy_stages."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # "python3" in a path: kfp.local replaces that text in arguments, which must not reach us.
        self.state = folder / "on python3" / "state"
        self.log = folder / "calls.log"
        documents = folder / "python3 documents"
        documents.mkdir()
        sections: dict[str, Any] = {"run": {"name": "t", "state": str(self.state)}, "platform": {"candidate_shards": 2}}
        sections["model"] = {"source": "example/of-unknown-size"}  # or each test would need its gigabytes on the disk
        self.settings = RunFile.model_validate(sections | {"documents": {"path": str(documents)}})
        self.folder = Workspace(self.state).run(self.settings.run_id)
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(DUMMIES), os.environ.get("PYTHONPATH")))))
        monkeypatch.setenv("DUMMY_LOG", str(self.log))

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.log.read_text().splitlines()]

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


class Finished(NamedTuple):
    """A world after one whole run, what that run returned, told its watcher and printed."""

    world: World
    result: RunResult
    events: list[Event]
    printed: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(tmp_path_factory.mktemp("finished"), monkeypatch)
        events: list[Event] = []
        terminal = io.StringIO()
        with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
            result = local_run.run(world.settings, events.append)
        yield Finished(world, result, events, terminal.getvalue())


def test_every_stage_runs_once_and_after_what_it_needs(finished: Finished) -> None:
    calls = finished.world.calls()
    before = [
        ("base-model", "inject"), ("qa-build", "inject"), ("inject", "align"), ("align", "merge-candidate-1"),
        ("vanilla", "judge-eval-references"), ("merge-candidate-2", "judge-eval-candidates-2"),
        ("judge-eval-candidates-1", "selector"), ("selector", "locked-test"), ("locked-test", "register"),
    ]  # fmt: skip
    assert all(calls.index(one) < calls.index(other) for one, other in before)
    assert len(calls) == len(set(calls)) == finished.result.tasks == TASKS
    assert finished.result.reused == 0
    assert finished.result.report.read_text() == "<p>report</p>"


def test_the_watcher_sees_every_task_and_the_terminal_is_left_alone(finished: Finished) -> None:
    assert [event.task for event in finished.events if event.kind == "done"] == finished.world.calls()
    assert any(event.note == "a quarter" for event in finished.events)
    assert finished.printed == ""


def test_inputs_reach_stages_by_role_and_shards_count_from_one(finished: Finished) -> None:
    lines = finished.world.log.read_text().splitlines()
    roles = {line.split()[0]: set(line.split()[1:]) for line in lines}
    assert roles["align"] == {"data", "base", "start"}
    assert roles["vanilla"] == {"data", "base"}
    assert roles["judge-eval-references"] == {"data", "base", "vanilla", "tuned", "inject"}
    assert roles["judge-eval-candidates-2"] == {"data", "base", "candidates"}
    assert roles["selector"] == {"data", "references", "candidates_1", "candidates_2", "scores_1", "scores_2"}
    assert {"selector", "references", "candidates_2", "scores_2"} <= roles["locked-test"]
    assert {"selector", "locked_test", "inject", "candidates_2", "scores_2"} <= roles["register"]
    parts = (finished.world.state / "artifacts").glob("merge-candidate-*/*/results.json")
    assert sorted(json.loads(path.read_text())["part"] for path in parts) == [[1, 2], [2, 2]]


def test_the_run_file_is_written_out_whole_and_is_the_same_run(finished: Finished) -> None:
    folder = finished.world.folder
    assert load_run_file(folder / "run.yaml") == finished.world.settings
    assert json.loads((folder / "run.json").read_text())["folder"] == str(Path.cwd())


def test_a_second_run_reuses_everything_quickly(finished: Finished) -> None:
    calls = finished.world.calls()
    second = local_run.run(finished.world.settings)
    assert finished.world.calls() == calls
    assert second.reused == TASKS and second.results == finished.result.results
    status = read_status(find_run(finished.world.state))
    assert status["state"] == "done" and status["results"]["pick"] == "ties-d0.3"
    assert all(stage["reused"] and stage["state"] == "done" for stage in status["stages"])


@pytest.mark.slow
def test_what_a_form_starts_is_reused_by_the_run_file_written_out(world: World, tmp_path: Path) -> None:
    from kfp import local

    from iar.pipelines.post_training import build

    world.set(IAR_STATE=str(world.state))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"), raise_on_error=True)
    with kfp_mended(tmp_path / "log.txt"):
        build(world.settings)(inject_epochs=5, experiment="night")
    sections = world.settings.model_dump(mode="json")
    sections["inject"]["epochs"], sections["register"]["experiment"] = 5, "night"
    written = RunFile.model_validate(sections)
    assert [path.name for path in (world.state / "runs").iterdir()] == [written.run_id]
    result = local_run.run(written)
    assert (result.reused, len(world.calls())) == (TASKS, TASKS)


def test_no_feasible_candidate_is_a_result_with_a_report(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_PICK", "")
    other = {"select": SelectSection(tolerance_points=2.0)}
    settings = finished.world.settings.model_copy(update=other)
    with pytest.raises(NoFeasibleCandidate, match=r"none of 2 passed the rule \(tolerance 2.0 points\).*report\.html$"):
        local_run.run(settings)
    assert finished.world.calls()[-3:] == ["selector", "locked-test", "register"]
    assert read_status(find_run(finished.world.state, settings.run_id))["state"] == "no_feasible_candidate"


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("user", UserError, r"^base-model: documents/: empty; put files there$"),
        ("temporary", TemporaryError, "^base-model: server down$"),
        ("full", UserError, "^base-model: no space left for .*: free some, then run the same command$"),
        ("bug", PermanentError, r"^base-model: unexpected ZeroDivisionError: a bug; the traceback is in .*log\.txt$"),
        ("killed", TemporaryError, r"^a task was killed at base-model, perhaps for memory; see .*log\.txt"),
    ],
)
def test_the_error_of_a_task_is_the_error_of_the_run(
    world: World, kind: str, error: type[IarError], message: str
) -> None:
    world.set(DUMMY_FAIL=f"base-model:{kind}")
    with pytest.raises(error, match=message):
        local_run.run(world.settings)
    assert json.loads((world.folder / "error.json").read_text())["exit_code"] == error.exit_code
    assert read_status(world.folder)["state"] == "failed"
    assert ("ZeroDivisionError" in (world.folder / "log.txt").read_text()) == (kind == "bug")
    (failed,) = activities(Registry.open(f"sqlite:///{world.state}/registry.sqlite"), failed=True)
    assert (failed.status, failed.stage) == ("killed" if kind == "killed" else "failed", "base-model")


SCRIPT = """
import sys
from iar.config import RunFile
from iar.errors import IarError
from iar.services import local_run
try:
    local_run.run(RunFile.model_validate_json(sys.argv[1]))
except IarError as error:
    print(error)
    sys.exit(int(error.exit_code))
"""


def heed_interrupts() -> None:
    """A shell that starts the tests in the background makes them, and so the run, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def slow_run(world: World) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run in a process of its own, and the process id of its slow task, once that works."""
    world.set(DUMMY_SLOW="align")
    command = [sys.executable, "-c", SCRIPT, world.settings.canonical()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        try:
            deadline = time.monotonic() + 60
            while not (found := [*(world.state / "work").glob("align-*/pid")]) or not found[0].read_text():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            yield process, int(found[0].read_text())
        finally:
            process.kill()


def ends(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that is not our child is gone, or is, within the given time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_task_and_says_how_to_continue(world: World, number: signal.Signals) -> None:
    with slow_run(world) as (process, task):
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 4
        assert output == "interrupted at align: run the same command again to continue\n"
        assert ends(task)
    assert read_status(world.folder)["state"] == "interrupted"


def test_a_killed_runner_leaves_no_writer_and_the_next_run_continues(world: World) -> None:
    with slow_run(world) as (process, task):
        with pytest.raises(UserError, match=rf"state is in use by another run \(process {process.pid}\)"):
            local_run.run(world.settings)
        assert read_status(world.folder)["state"] == "running"
        process.kill()
        assert ends(task)
    assert read_status(world.folder)["state"] == "interrupted"

    world.set(DUMMY_SLOW="", DUMMY_FAIL="merge-candidate-1:user")
    done = world.calls()[:-1]
    with pytest.raises(UserError):
        local_run.run(world.settings)
    assert not set(world.calls()[len(done) + 1 :]) & set(done)  # nothing finished was made again
    assert [*(world.state / "artifacts" / "align").glob("*/half.txt")]  # and the killed task went on where it stood


def test_a_state_folder_that_cannot_be_is_a_user_error(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    world.set(IAR_STATE=str(tmp_path / "file" / "state"))
    with pytest.raises(UserError, match=r"set run\.state to a folder you can write"):
        local_run.run(world.settings)


def test_a_disk_too_small_is_refused_before_anything_runs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.settings.model_copy(update={"model": ModelSection(source="Qwen/Qwen3-32B")})
    world.set(IAR_STATE=str(tmp_path / "new" / "state"))
    usage = type("Usage", (), {"free": 55_000_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"55\.0 GB free in .*, at least 1048\.4 GB needed .* of Qwen/Qwen3-32B; free"):
        local_run.run(settings)
    assert not (tmp_path / "new").exists()


def test_a_run_outside_the_main_thread_works(world: World) -> None:
    world.set(DUMMY_FAIL="qa-build:user")
    errors: list[str] = []

    def run() -> None:
        try:
            local_run.run(world.settings)
        except UserError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == ["qa-build: documents/: empty; put files there"]
