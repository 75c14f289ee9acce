"""The tiny pipeline with all servers real: an S3 store, a registry on PostgreSQL, an MLflow server.

One machine makes everything; another one, with an empty state folder, finds it in the store.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iar import cli
from iar.config import RunFile
from iar.services import local_run
from iar.services.ask import picked_model
from iar.services.local_run import RunResult
from iar.services.registry import Registry
from iar.services.runs import read_status
from iar.services.store import StoredRef
from iar.services.workspace import Workspace
from tests.finished_run import REPOSITORY, tiny_run_file
from tests.services.s3_server import PLACE, S3Server, s3_server
from tests.services_real.conftest import mlflow_server

pytestmark = [pytest.mark.services, pytest.mark.slow]
TASKS = 11


class Ended(NamedTuple):
    """A run of two machines: what each ended with, and what was asked of the store meanwhile."""

    first: RunFile
    second: RunFile
    results: list[RunResult]
    requests: list[Counter[str]]
    s3: S3Server


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path, postgresql_server: str) -> Iterator[Ended]:
    import psycopg

    folder = tmp_path_factory.mktemp("servers")
    (folder / "mlflow").mkdir()
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as s3, mlflow_server(folder / "mlflow") as mlflow:
        patch.chdir(REPOSITORY)
        patch.setenv("PGUSER", "iar")
        patch.setenv("PGPASSWORD", "s3cret")
        database = f"pipeline_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(f"postgresql://{postgresql_server}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
        data: dict[str, Any] = tiny_run_file(folder, tiny_model_folder).model_dump(mode="json")
        data["baselines"] = {}
        data["register"] |= {"tracking_uri": mlflow, "registry_url": f"postgresql://{postgresql_server}/{database}"}
        machines, results, requests = [], [], []
        for name in ("a", "b"):
            data["run"] |= {"state": str(folder / name), "store": PLACE}
            machines.append(RunFile.model_validate(data | {"inject": data["inject"] | {"checkpoint_seconds": 0.01}}))
            results.append(local_run.run(machines[-1]))
            requests.append(s3.counted())
        yield Ended(*machines, results, requests, s3)


def test_the_second_machine_makes_nothing_and_has_the_same_results(ended: Ended) -> None:
    first, second = ended.results
    assert (first.tasks, first.reused) == (TASKS, 0)
    assert (second.tasks, second.reused) == (TASKS, TASKS)
    assert second.results == first.results and first.run_id == second.run_id
    assert second.report.read_bytes() == first.report.read_bytes()


def test_the_store_has_each_artifact_once_and_no_restart_point_is_left(ended: Ended) -> None:
    manifests = [name for name in ended.s3.names() if name.endswith("/manifest.json")]
    assert len({name.split("/")[-3] for name in manifests}) == len(manifests) == TASKS
    assert not ended.s3.names("team/iar/restart/")
    assert ended.requests[0]["DeleteObjects"] >= 1, "restart points were uploaded, and removed when it was finished"
    assert set(ended.requests[1]) == {"GetObject", "ListObjects"}, "the second machine only reads"


def test_tasks_hand_on_references_into_the_store(ended: Ended) -> None:
    outputs = list((Path(ended.first.run.state) / "kfp").rglob("executor_output.json"))
    values = [json.loads(path.read_text())["parameterValues"] for path in outputs]
    handed = [value["Output"] for value in values if "run_file" not in value]  # the form hands on the run file
    assert len(handed) == len(values) - 1 > 0 and all(StoredRef.parse(text).place == PLACE for text in handed)


def test_status_lineage_and_the_picked_model_work_on_both_machines(
    ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    for run_file in (ended.first, ended.second):
        status = read_status(Workspace.of(run_file).run(run_file.run_id))
        assert status["state"] == "done"
        pick, folder = picked_model(status)
        assert pick == ended.results[0].results["pick"] and list(folder.glob("*.safetensors"))
        assert cli.call(["status", "--state", run_file.run.state]) == 0
        assert pick in capsys.readouterr().out


def test_registry_and_tracking_know_the_run_once(ended: Ended) -> None:
    import mlflow

    client = mlflow.MlflowClient(ended.first.register.tracking_uri)
    (version,) = client.search_model_versions(f"name = '{ended.first.register.model_name}'")
    assert version.tags["iar.candidate"] == ended.results[0].results["pick"]
    registry = Registry.open(ended.first.register.registry_url)
    try:
        assert registry.verify() == []
        assert len(registry.upstream(version.tags["iar.lineage"])) > 10
    finally:
        registry.close()


def test_no_key_stands_in_anything_that_was_written(ended: Ended) -> None:
    for state in (ended.first.run.state, ended.second.run.state):
        for path in Path(state).rglob("*"):
            if path.is_file() and path.suffix in (".json", ".jsonl", ".txt", ".html", ".yaml", ".md"):
                assert b"s3cret" not in path.read_bytes(), path
