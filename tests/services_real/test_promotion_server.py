"""Promotion with what a team has: an MLflow server that keeps the artifacts, and MLflow and registry in PostgreSQL."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.services.promotion import history, promote, rollback
from iar.services.retraction import retract
from tests.services.test_promotion import Books
from tests.services_real.conftest import mlflow_server

pytestmark = pytest.mark.services


def new_database(server: str) -> str:
    import psycopg

    name = f"iar_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(f"postgresql://iar:s3cret@{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name


@pytest.fixture(scope="module")
def tracking_uri(postgresql_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server on a database of its own."""
    database = f"postgresql://iar:s3cret@{postgresql_server}/{new_database(postgresql_server)}"
    with mlflow_server(tmp_path_factory.mktemp("mlflow-postgresql"), database) as address:
        yield address


@pytest.fixture
def books(tracking_uri: str, postgresql_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    monkeypatch.setenv("PGUSER", "iar")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    for name in ("MLFLOW_RUN_ID", "IAR_STATE"):
        monkeypatch.delenv(name, raising=False)
    registry = f"postgresql://{postgresql_server}/{new_database(postgresql_server)}"
    name = f"model-{uuid.uuid4().hex[:6]}"
    register = {"tracking_uri": tracking_uri, "registry_url": registry, "model_name": name, "experiment": name}
    return Books(tmp_path / "state", {"register": register})


def client(books: Books, run_file: RunFile) -> Any:
    return books.tracker(run_file)._client()


def test_gates_alias_history_and_rollback_hold_on_a_server(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")

    assert [promote(one, "champion", test_reused=True).version for one in (first, second)] == ["1", "2"]

    version = client(books, first).get_model_version_by_alias(first.register.model_name, "champion")
    assert version.source.startswith("mlflow-artifacts:") and version.tags["iar.run_id"] == second.run_id
    assert "files pass" in version.tags["iar.gates"] and "audit pass" in version.tags["iar.gates"]
    assert rollback(first, "champion").version == books.alias(first) == "1"
    assert [move["kind"] for move in history(first, "champion")] == ["promote", "promote", "rollback"]


def test_a_file_that_the_server_lost_is_found(books: Books) -> None:
    run_file = books.finish("one")
    version = client(books, run_file).search_model_versions(f"name = '{run_file.register.model_name}'")[0]
    client(books, run_file)._tracking_client._get_artifact_repo(version.run_id).delete_artifacts("model/config.json")

    with pytest.raises(UserError, match=r"version 1 in MLflow differs from the run in config\.json"):
        promote(run_file, "champion")
    assert books.alias(run_file) == ""


def test_a_retracted_document_stops_a_promotion_and_a_way_back(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    for one in (first, second):
        promote(one, "champion", test_reused=True)
    retract(books.registry, "document:dddd", "asked to")

    for forbidden in (lambda: promote(first, "other", test_reused=True), lambda: rollback(first, "champion")):
        with pytest.raises(UserError, match=r'<- document:d{12} \(velm.md\) was retracted on .*: "asked to"'):
            forbidden()
    assert books.alias(first) == "2"


def test_of_two_promotions_at_once_the_history_and_the_alias_agree(books: Books) -> None:
    runs = [books.finish("one"), books.finish("two")]
    outcomes: list[str] = []

    def attempt(run_file: RunFile) -> None:
        try:
            outcomes.append(promote(run_file, "champion", test_reused=True).version)
        except UserError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=attempt, args=(run_file,)) for run_file in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(outcomes) == 2
    assert books.alias(runs[0]) == str(history(runs[0], "champion")[-1]["version"])


def test_a_promoted_version_attaches_to_the_run_that_the_platform_opened(
    books: Books, tracking_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = books.run_file("one")
    outer = client(books, plain).create_run(client(books, plain).create_experiment(f"outer-{uuid.uuid4().hex[:6]}"))
    monkeypatch.setenv("MLFLOW_RUN_ID", outer.info.run_id)

    run_file = books.finish("one")
    assert promote(run_file, "champion").version == "1"

    version = client(books, run_file).get_model_version_by_alias(run_file.register.model_name, "champion")
    child = client(books, run_file).get_run(version.run_id)
    assert child.data.tags["mlflow.parentRunId"] == outer.info.run_id
    assert client(books, run_file).get_run(outer.info.run_id).info.status == "RUNNING"
