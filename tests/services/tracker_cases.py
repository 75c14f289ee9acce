"""What tracking must do on every MLflow store. Collected by the modules that define `tracking_uri`."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.services.linked_runs import DatasetUse
from iar.services.tracking import Tracker

STEPS = [{"step": step, "loss": 1.0 / step, "note": "text", "ok": True} for step in range(1, 1203)]


@pytest.fixture
def run_file(tracking_uri: str, request: pytest.FixtureRequest) -> RunFile:
    """A run file with an experiment and a model name of this test's own."""
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    register = {"experiment": name, "model_name": name, "tracking_uri": tracking_uri}
    return RunFile.model_validate({"run": {"name": "demo"}, "documents": {"path": "docs"}, "register": register})


@pytest.fixture
def tracker(run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    return Tracker(run_file, "demo-0123456789", tmp_path)


@pytest.fixture
def client(tracker: Tracker) -> Any:
    return tracker._client()


@functools.cache
def migrated_database() -> Path:
    """An MLflow database with all its tables and no run, made once a session: the migration takes seconds."""
    state = Path(tempfile.mkdtemp(prefix="iar-mlflow-"))
    atexit.register(shutil.rmtree, state)
    file = RunFile.model_validate({"run": {"name": "demo"}, "documents": {"path": "docs"}})
    Tracker(file, "demo-0", state)._client().search_experiments()
    return state / "mlflow.db"


def fresh_store(state: Path) -> Path:
    """Make a state folder with an empty MLflow database."""
    state.mkdir(parents=True, exist_ok=True)
    shutil.copy(migrated_database(), state / "mlflow.db")
    return state


def make_checkpoint(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights * 1000)
    return folder


def runs(client: Any, run_file: RunFile) -> dict[str, Any]:
    """Return the runs of this test's experiment by name; a name seen twice fails."""
    experiment = client.get_experiment_by_name(run_file.register.experiment)
    found = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


def test_datasets_and_tags_of_a_task_are_logged_once(tracker: Tracker, client: Any, run_file: RunFile) -> None:
    uses = [DatasetUse("qa", "d" * 64, "trained-on", {"pairs": 9}), DatasetUse("validation", "e" * 64, "made", {})]
    tags = {"iar.lineage": "checkpoint:" + "c" * 12, "iar.activity": "a" * 64}

    ids = {tracker.log_stage("inject", {}, {}, datasets=uses, tags=tags) for _ in range(2)}

    child = runs(client, run_file)["inject"]
    assert ids == {child.info.run_id} and child.data.tags.items() >= tags.items()
    logged = {
        one.dataset.name: (one.dataset.digest, {tag.key: tag.value for tag in one.tags})
        for one in child.inputs.dataset_inputs
    }
    assert logged["qa"] == ("d" * 36, {"mlflow.data.context": "trained-on", "iar.lineage": "d" * 64})
    assert logged.keys() == {"qa", "validation"} and len(child.inputs.dataset_inputs) == 2
    (profile,) = [one.dataset.profile for one in child.inputs.dataset_inputs if one.dataset.name == "qa"]
    assert profile == '{"pairs": 9}'


def test_a_task_is_a_child_of_the_pipeline_run_with_all_it_reported(
    tracker: Tracker, client: Any, run_file: RunFile, tmp_path: Path
) -> None:
    (tmp_path / "card.json").write_text('{"rows": 3}')
    params = {"inject": {"recipe": "1:1:2", "long": "x" * 900}}

    tracker.log_stage("inject", params, {"final_loss": 0.5, "a@b": 1}, STEPS, [tmp_path / "card.json"])

    found = runs(client, run_file)
    child, parent = found["inject"], found["demo-0123456789"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["iar.stage"] == "inject" and parent.data.tags["iar.run_id"] == "demo-0123456789"
    assert child.data.params == {"inject.recipe": "1:1:2", "inject.long": "x" * 500}
    assert child.data.metrics == {"final_loss": 0.5, "a_b": 1.0, "step/loss": pytest.approx(1 / 1202)}
    assert child.info.status == "FINISHED"
    history = client.get_metric_history(child.info.run_id, "step/loss")
    assert [(metric.step, metric.value) for metric in history] == [(row["step"], row["loss"]) for row in STEPS]
    assert [item.path for item in client.list_artifacts(child.info.run_id)] == ["card.json"]


def test_logging_again_from_another_process_adds_nothing(tracker: Tracker, run_file: RunFile, client: Any) -> None:
    tracker.log_stage("align", {"epochs": 3}, {"loss": 0.5}, STEPS[:3])
    Tracker(run_file, "demo-0123456789", Path("/nowhere")).log_stage("align", {"epochs": 3}, {"loss": 0.5}, STEPS[:3])

    child = runs(client, run_file)["align"]
    assert len(client.get_metric_history(child.info.run_id, "step/loss")) == 3


def test_a_task_killed_while_it_was_logged_is_completed(
    tracker: Tracker, run_file: RunFile, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(client, "set_tag", die)
        tracker.log_stage("align", {"epochs": 3}, {"loss": 0.5}, STEPS[:3])
    tracker.log_stage("align", {"epochs": 3}, {"loss": 0.5}, STEPS[:5])

    child = runs(client, run_file)["align"]
    assert len(client.get_metric_history(child.info.run_id, "step/loss")) == 5
    assert child.info.status == "FINISHED"


def test_a_task_with_other_results_gets_a_child_of_its_own(tracker: Tracker, client: Any, run_file: RunFile) -> None:
    for epochs in (3, 4, 3):
        tracker.log_stage("align", {"epochs": epochs}, {"loss": 0.5})

    experiment = client.get_experiment_by_name(run_file.register.experiment)
    children = client.search_runs([experiment.experiment_id], "tags.`iar.stage` = 'align'")
    assert sorted(child.data.params["epochs"] for child in children) == ["3", "4"]


def test_an_outer_run_becomes_the_parent_and_is_not_ended(
    tracker: Tracker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = client.create_run(client.create_experiment("outer"))
    monkeypatch.setenv("MLFLOW_RUN_ID", outer.info.run_id)

    tracker.log_stage("align", {}, {})
    tracker.finish("FINISHED")

    children = client.search_runs([tracker._experiment()], f"tags.`mlflow.parentRunId` = '{outer.info.run_id}'")
    assert [child.info.run_name for child in children] == ["align"]
    assert client.get_run(outer.info.run_id).info.status == "RUNNING"


def test_the_report_hangs_on_the_pipeline_run_which_ends_with_its_status(
    tracker: Tracker, client: Any, run_file: RunFile, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text("<html></html>")

    tracker.log_report(tmp_path / "report.html")
    tracker.finish("FAILED")

    parent = runs(client, run_file)["demo-0123456789"]
    assert [item.path for item in client.list_artifacts(parent.info.run_id)] == ["report.html"]
    assert parent.info.status == "FAILED"


def test_a_registered_model_comes_back_by_its_alias_as_it_was(
    tracker: Tracker, client: Any, run_file: RunFile, tmp_path: Path
) -> None:
    from mlflow.artifacts import download_artifacts

    folder = make_checkpoint(tmp_path / "model")

    assert tracker.register_model(folder, {"iar.candidate": "ties-d0.3"}) == "1"

    version = client.get_model_version_by_alias(run_file.register.model_name, "candidate")
    assert version.version in ("1", 1) and version.status == "READY"
    assert version.tags["iar.candidate"] == "ties-d0.3"
    stored = client.get_model_version_download_uri(version.name, version.version)
    copy = download_artifacts(stored, dst_path=str(tmp_path / "copy"), tracking_uri=client.tracking_uri)
    assert (Path(copy) / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (Path(copy) / "config.json").is_file()


def test_equal_weights_keep_their_version_and_others_move_the_alias(
    tracker: Tracker, client: Any, run_file: RunFile, tmp_path: Path
) -> None:
    first, other = make_checkpoint(tmp_path / "first"), make_checkpoint(tmp_path / "other", b"other")

    versions = [tracker.register_model(folder, {}) for folder in (first, first, other)]
    assert versions == ["1", "1", "2"]
    alias = client.get_model_version_by_alias(run_file.register.model_name, "candidate")
    assert str(alias.version) == "2"
    assert tracker.register_model(first, {}) == "1"


def test_a_folder_without_weights_is_refused(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(UserError, match=r"no \*.safetensors file"):
        tracker.register_model(tmp_path / "empty", {})
