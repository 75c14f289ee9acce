"""Tracking on the SQLite store: the common cases, and the default place."""

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.errors import TemporaryError
from iar.services.tracking import Tracker
from iar.services.tracking_store import prepare_database
from tests.services.tracker_cases import *  # noqa: F403
from tests.services.tracker_cases import fresh_store, make_checkpoint


@pytest.fixture
def tracking_uri(tmp_path: Path) -> str:
    return f"sqlite:///{fresh_store(tmp_path / 'store') / 'mlflow.db'}"


def _run_file(tracking_uri: str = "") -> RunFile:
    register = {"tracking_uri": tracking_uri}
    return RunFile.model_validate({"run": {"name": "demo"}, "documents": {"path": "docs"}, "register": register})


def test_the_default_store_lies_in_the_state_folder_and_holds_the_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, state = make_checkpoint(tmp_path / "model"), fresh_store(tmp_path / "state")

    Tracker(_run_file(), "demo-1", state).register_model(folder, {})

    stored = list((state / "mlartifacts").rglob("model.safetensors"))
    assert [path.samefile(folder / "model.safetensors") for path in stored] == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "state"]


def test_an_unreachable_server_is_one_line_without_the_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cret")
    tracker = Tracker(_run_file("http://me@127.0.0.1:1"), "demo-1", tmp_path)

    with pytest.raises(TemporaryError, match=r"MLflow at http://127.0.0.1:1: .*check register.tracking_uri") as failed:
        tracker.log_report(tmp_path)
    assert "s3cret" not in str(failed.value) and "\n" not in str(failed.value)


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Tracker(_run_file(), "quiet", fresh_store(tmp_path / "s")).register_model(make_checkpoint(tmp_path / "model"), {})

    assert capfd.readouterr() == ("", "")


def test_a_database_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    def die(uri: str) -> None:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_database(f"sqlite:///{tmp_path}/mlflow.db", die)
    assert not (tmp_path / "mlflow.db").exists()

    prepare_database(f"sqlite:///{tmp_path}/mlflow.db", lambda uri: sqlite3.connect(uri[10:]).close())
    assert (tmp_path / "mlflow.db").exists()


@pytest.mark.slow
def test_tasks_that_start_at_once_share_one_new_database_and_one_pipeline_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("spawn")
    tasks = [context.Process(target=log_one_task, args=(tmp_path / "state", number)) for number in range(3)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()

    assert [task.exitcode for task in tasks] == [0, 0, 0]
    assert capfd.readouterr() == ("", "")
    client = Tracker(_run_file(), "demo-1", tmp_path / "state")._client()
    found = client.search_runs([client.get_experiment_by_name("iar").experiment_id])
    assert sorted(run.info.run_name for run in found) == ["demo-1", "judge-0", "judge-1", "judge-2"]
    assert len({run.data.tags.get("mlflow.parentRunId") for run in found}) == 2


def log_one_task(state: Path, number: int) -> None:
    Tracker(_run_file(), "demo-1", state).log_stage(f"judge-{number}", {"number": number}, {"score": 1.0})
