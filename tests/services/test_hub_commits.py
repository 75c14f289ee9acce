"""A branch of the hub that moves is read anew, and without the hub the last commit seen stands in for it."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.records import Outcome
from iar.services import doctor
from iar.services.doctor_suites import check_suites
from iar.services.execution import Finished, execute
from iar.services.hub_commits import Seen, look_up, pin, repository
from iar.services.sources import hub_commit

FIRST, SECOND = "a" * 40, "b" * 40


class Hub:
    """A hub with a model and a dataset, both named org/name, whose branches are where `commits` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits: dict[str, str] = {"main": FIRST}
        self.asked: list[str] = []
        self.down = False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if "/revision/" in self.path:  # the client asks once for something else
                    hub.asked.append(self.path)
                revision = unquote(self.path.rpartition("/revision/")[2])
                commit = hub.commits.get(revision) or (revision if revision in hub.commits.values() else "")
                self.send_response(503 if hub.down else 200 if commit else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"id": "org/name", "sha": commit}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{self.server.server_port}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    made = Hub(monkeypatch)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


NAMES = ("ifeval", "mmlu", "msbench")


def run_file(**sections: Any) -> RunFile:
    known = {"run": {"name": "t"}, "documents": {"path": "org/name"}, "model": {"source": "org/name"}}
    return RunFile.model_validate(known | sections)


@pytest.mark.parametrize(
    ("key", "sections", "path"),
    [
        ("documents.path", {}, "/api/datasets/org/name/revision/main"),
        ("model.source", {}, "/api/models/org/name/revision/main"),
        (
            "baselines.cpt_model",
            {"baselines": {"cpt_model": "org/name", "cpt_revision": "main"}},
            "/api/models/org/name/revision/main",
        ),
        ("baselines.replay_data", {"baselines": {"replay_data": "org/name"}}, "/api/datasets/org/name/revision/main"),
        *(
            (f"evaluate.{name}", {"evaluate": {name: "org/name"}}, "/api/datasets/org/name/revision/main")
            for name in NAMES
        ),
    ],
)
def test_a_branch_becomes_the_commit_that_it_is_at(
    hub: Hub, tmp_path: Path, key: str, sections: dict[str, Any], path: str
) -> None:
    file = run_file(**sections)
    pinned, commits, lines = pin(file, [key], tmp_path, {})
    assert commits == {key: FIRST} and lines == [] and hub.asked == [path]
    found = repository(file, key)
    assert found is not None and found.revision == "main"
    assert repository(pinned, key) is None  # a commit needs no asking
    assert pin(pinned, [key], tmp_path, {}) == (pinned, {}, [])
    hub.commits["main"] = SECOND
    assert pin(file, [key], tmp_path, {key: FIRST}) == (pinned, {key: FIRST}, [])  # an earlier stage has settled it


def test_a_revision_may_stand_after_the_id_of_a_suite(hub: Hub, tmp_path: Path) -> None:
    hub.commits["dev"] = SECOND
    file = run_file(evaluate={"mmlu": "org/name@dev"})
    pinned, commits, lines = pin(file, ["evaluate.mmlu"], tmp_path, {})
    assert (pinned.evaluate.mmlu, commits, lines) == (f"org/name@{SECOND}", {"evaluate.mmlu": SECOND}, [])
    assert hub.asked == ["/api/datasets/org/name/revision/dev"]
    for place in (f"org/name@{FIRST}", "probes/mmlu.jsonl", "examples/probes/mmlu.jsonl", "org/name@"):
        assert repository(run_file(evaluate={"mmlu": place}), "evaluate.mmlu") is None


def test_folders_files_known_names_and_commits_are_no_repositories(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert repository(run_file(), "documents.path") is None
    shutil.rmtree(tmp_path / "org")
    assert repository(run_file(), "documents.path") is not None
    for model in ("smollm2-135m-instruct", str(tmp_path)):
        assert repository(run_file(model={"source": model}), "model.source") is None
    pinned = {"path": "org/name", "revision": FIRST}
    assert repository(run_file(documents=pinned), "documents.path") is None
    assert repository(run_file(documents={"path": "s3://bucket/name"}), "documents.path") is None
    assert hub.asked == []


def test_without_the_hub_the_last_commit_seen_is_taken_and_said(hub: Hub, tmp_path: Path) -> None:
    found = repository(run_file(), "documents.path")
    assert found is not None
    hub.down = True
    nothing = look_up(found, tmp_path)
    assert nothing.commit == "" and "503" in nothing.problem
    file = run_file()
    assert pin(file, ["documents.path"], tmp_path, {}) == (file, {}, [])
    # What another program has fetched is in the hub's own cache.
    ref = tmp_path / "hub-cache" / "datasets--org--name" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_text(SECOND)
    assert look_up(found, tmp_path).commit == SECOND
    hub.down = False
    assert look_up(found, tmp_path) == Seen(FIRST)
    hub.down = True
    _, commits, (line,) = pin(file, ["documents.path"], tmp_path, {})
    assert commits == {"documents.path": FIRST}
    assert line.startswith("documents.path: the hub does not say where org/name is at main now (")
    assert line.endswith("its commit aaaaaaaaaaaa, last seen here, is taken")


def test_an_answer_without_a_commit_is_none(hub: Hub, tmp_path: Path) -> None:
    hub.commits["main"] = "../../etc"
    found = repository(run_file(), "documents.path")
    assert found is not None and look_up(found, tmp_path) == Seen("", "its answer names no commit")
    with pytest.raises(UserError, match=r"^documents\.path: org/name at revision dev was not found on the hub \("):
        hub_commit("org/name", "dev")


def test_an_unreachable_hub_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^documents\.path: org/name at revision main was not found on the hub \("):
        hub_commit("org/name", "main")


def test_a_branch_that_moved_is_not_served_from_the_old_result(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[tuple[str, str]] = []

    def stage(given: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
        read.append((given.model.revision, given.documents.revision))
        (out / "made.txt").write_text(given.model.revision + given.documents.revision)
        return Outcome({}, "", ())

    monkeypatch.setenv("IAR_STATE", str(tmp_path / "state"))
    for name in ("base_model", "qa_build"):
        monkeypatch.setitem(sys.modules, f"iar.stages.{name}", SimpleNamespace(run=stage))
    tracking = SimpleNamespace(
        Tracker=lambda *_: SimpleNamespace(log_stage=lambda *_args, **_named: "run-1", uri="mlflow")
    )
    monkeypatch.setitem(sys.modules, "iar.services.tracking", tracking)
    file = run_file()

    def both() -> list[Finished]:
        return [execute(stage, file.canonical(), {}) for stage in ("base_model", "qa_build")]

    first = both()
    assert read == [(FIRST, "main"), ("main", FIRST)]  # each stage is given the commit of what it reads itself
    assert all(one.reused for one in both())
    hub.commits["main"] = SECOND
    moved = both()
    assert read[2:] == [(SECOND, "main"), ("main", SECOND)]
    assert [str(one.ref) for one in moved] != [str(one.ref) for one in first] and not any(one.reused for one in moved)
    capsys.readouterr()
    hub.down = True
    assert [str(one.ref) for one in both()] == [str(one.ref) for one in moved] and len(read) == 4
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["model.source", "documents.path"]
    hub.down, hub.commits["main"] = False, FIRST
    assert [str(one.ref) for one in both()] == [str(one.ref) for one in first] and len(read) == 4


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Stages that only note which prompts of mmlu they are given, in the order in which they run."""
    read: list[tuple[str, str]] = []

    def stage_named(name: str) -> SimpleNamespace:
        def stage(given: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
            read.append((name, given.evaluate.mmlu))
            (out / "made.txt").write_text(name)
            return Outcome({}, "", ())

        return SimpleNamespace(run=stage)

    monkeypatch.setenv("IAR_STATE", str(tmp_path / "state"))
    for name in ("base_model", "qa_documents", "qa_build", "judge_eval"):
        monkeypatch.setitem(sys.modules, f"iar.stages.{name}", stage_named(name))
    tracking = SimpleNamespace(
        Tracker=lambda *_: SimpleNamespace(log_stage=lambda *_args, **_named: "run-1", uri="mlflow")
    )
    monkeypatch.setitem(sys.modules, "iar.services.tracking", tracking)
    return read


def test_all_stages_of_a_run_read_the_prompts_that_the_first_one_read(
    hub: Hub, tmp_path: Path, stages: list[tuple[str, str]]
) -> None:
    (tmp_path / "documents").mkdir()
    file = run_file(
        documents={"path": str(tmp_path / "documents")}, model={"source": "m"}, evaluate={"mmlu": "org/name"}
    ).canonical()

    def whole(move_to: str = "") -> list[bool]:
        base = execute("base_model", file, {})
        documents = execute("qa_documents", file, {})
        hub.commits["main"] = move_to or hub.commits["main"]
        data = execute("qa_build", file, {"documents": documents.handed_on})
        judged = execute("judge_eval", file, {"data": data.handed_on, "base": base.handed_on})
        return [documents.reused, data.reused, judged.reused]

    made = ["qa_documents", "qa_build", "judge_eval"]
    whole(move_to=SECOND)
    assert stages[1:] == [(name, f"org/name@{FIRST}") for name in made]
    # The data comes out with the same bytes; it is what was asked that has changed.
    assert whole() == [False, False, False]
    assert stages[4:] == [(name, f"org/name@{SECOND}") for name in made]
    hub.down = True
    assert whole() == [True, True, True] and len(stages) == 7


def test_the_doctor_names_the_commits_of_the_suites(hub: Hub, tmp_path: Path) -> None:
    file = run_file(run={"name": "t", "state": str(tmp_path / "state")}, evaluate=dict.fromkeys(NAMES, "org/name"))
    said = check_suites(file)
    assert (said.status, said.detail) == ("warn", "org/name, org/name, org/name will be fetched from the hub")
    assert said.fix.startswith(f"set evaluate.ifeval to org/name@{FIRST}, evaluate.mmlu to org/name@{FIRST}, ")
    hub.down = True
    assert "evaluate.mmlu: the hub does not say where org/name is at main now (" in check_suites(file).detail
    shutil.rmtree(tmp_path / "state")
    said = check_suites(file)
    assert "; evaluate.mmlu: org/name at main: " in said.detail and "503" in said.detail
    assert said.fix == "download them before, to be sure"


def test_the_doctor_says_what_stands_in_for_the_hub(hub: Hub, tmp_path: Path) -> None:
    file = run_file(run={"name": "t", "state": str(tmp_path / "state")})
    said = doctor.find_documents(file)
    assert (said.status, said.fix) == (
        "warn",
        f"set documents.revision to a commit to be sure of the same rows, now {FIRST}",
    )
    hub.down = True
    said = doctor.find_documents(file)
    assert said.status == "warn" and said.detail.endswith("its commit aaaaaaaaaaaa, last seen here, is taken")
    hub.down = False
    pinned = run_file(documents={"path": "org/name", "revision": FIRST})
    assert doctor.find_documents(pinned).status == "pass"
