"""MLflow tracking and model registry: one run a pipeline run, a child run a task, one version a set of weights.

Everything is found again by tags, so that a repeated or resumed pipeline run adds nothing twice.
"""

import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from iar.config import RunFile
from iar.errors import PermanentError, TemporaryError
from iar.methods.digest import digest_json
from iar.methods.flatten import flatten, is_number, tracking_key
from iar.services.checkpoints import weight_files
from iar.services.linked_runs import LINEAGE_TAG, DatasetUse
from iar.services.linking import link_tree, tree_digests, tree_sizes
from iar.services.tracking_store import SQLITE, prepare_database

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

RUN_TAG, STAGE_TAG, LOGGED_TAG, CONTENT_TAG = "iar.run_id", "iar.stage", "iar.logged", "iar.content"
CONTEXT_TAG = "mlflow.data.context"
PARENT_TAG, NAME_TAG = "mlflow.parentRunId", "mlflow.runName"
PIPELINE, REGISTER = "pipeline", "register"
LOCAL_DATABASE = "mlflow.db"
ALREADY_THERE = "RESOURCE_ALREADY_EXISTS"
PARAM_CHARACTERS = 500
DESCRIPTION_CHARACTERS = 5000
PARAMS_A_CALL = 100
METRICS_A_CALL = 1000
TAG_CHARACTERS = 5000
DATASET_DIGEST_CHARACTERS = 36  # what MLflow keeps of a dataset's digest; the whole one is a tag beside it
QUIET = {
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
}


class Tracker:
    """The MLflow view of one pipeline run. Raises TemporaryError where the server fails."""

    def __init__(self, run_file: RunFile, run_id: str, state: Path) -> None:
        self._settings = run_file.register
        self._run_id = run_id
        self._state = state.resolve()
        self._uri = self._settings.tracking_uri or f"{SQLITE}{self._state / LOCAL_DATABASE}"
        self._opened: MlflowClient | None = None

    @property
    def uri(self) -> str:
        """Address of the tracking server, without user and password."""
        return re.sub(r"//[^/@]*@", "//", self._uri)

    def log_stage(
        self,
        task: str,
        params: Mapping[str, Any],
        metrics: Mapping[str, float],
        steps: Iterable[Mapping[str, Any]] = (),
        artifacts: Sequence[Path] = (),
        datasets: Sequence[DatasetUse] = (),
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Log a finished task as a child run and return its id; the same params and metrics are logged once.

        `params` may be nested. A step is a row with `step` and numbers; what is no number is left out.
        """
        logged = digest_json({"params": dict(params), "metrics": dict(metrics)})
        with self._explained():
            run = self._child(task, logged)
            if run.data.tags.get(LOGGED_TAG) == logged:
                return str(run.info.run_id)
            self._log_params(run, params)
            self._log_metrics(run, metrics, steps)
            for path in artifacts:
                self._log_artifact(run, path)
            self._log_datasets(run, datasets)
            for name, value in (tags or {}).items():
                self._client().set_tag(run.info.run_id, name, value[:TAG_CHARACTERS])
            # Last, so that a task killed half-way is completed by the next try.
            self._client().set_tag(run.info.run_id, LOGGED_TAG, logged)
            self._client().set_terminated(run.info.run_id, "FINISHED")
        return str(run.info.run_id)

    def log_report(self, path: Path) -> None:
        """Log a file or a folder as an artifact of the pipeline run."""
        with self._explained():
            self._log_artifact(self._parent(), path)

    def register_model(self, folder: Path, tags: Mapping[str, str], description: str = "") -> str:
        """Register a checkpoint folder and point the alias at it; return the version.

        Files that have a version keep it. `description` is Markdown, cut where it is longer than MLflow keeps.
        Raises UserError for a folder without weights, PermanentError when the stored files are not complete.
        """
        weight_files(folder)
        name, content = self._settings.model_name, digest_json(tree_digests(folder))
        with self._explained():
            version = self._version_of(name, content)
            if version is None:
                version = self._new_version(name, folder, {**tags, CONTENT_TAG: content}, description)
            self._client().set_registered_model_alias(name, self._settings.alias, version)
        return version

    def tag_values(self, tag: str) -> list[str]:
        """Return what the runs of this pipeline run, and the versions that came of it, have under a tag, each once."""
        with self._explained():
            client = self._client()
            known = client.get_experiment_by_name(self._settings.experiment)
            tagged = self._runs({RUN_TAG: self._run_id}) if known else []
            values = {run.data.tags.get(tag, "") for run in tagged}
            versions = client.search_model_versions(f"tags.`{RUN_TAG}` = '{self._run_id}'")
            values |= {version.tags.get(tag, "") for version in versions}
        return sorted(values - {""})

    @contextmanager
    def opened(self) -> "Iterator[MlflowClient]":
        """Yield MLflow's client; what fails there becomes a TemporaryError of one line."""
        with self._explained():
            yield self._client()

    def finish(self, status: str) -> None:
        """End the pipeline run as FINISHED, FAILED or KILLED; a run that MLFLOW_RUN_ID names is left to its owner."""
        if not os.environ.get("MLFLOW_RUN_ID"):
            with self._explained():
                self._client().set_terminated(self._parent().info.run_id, status)

    def _client(self) -> "MlflowClient":
        if self._opened is None:
            if self._uri.startswith(SQLITE):
                prepare_database(self._uri, _new_client)
            self._opened = _new_client(self._uri)
        return self._opened

    @contextmanager
    def _explained(self) -> Iterator[None]:
        quieten()
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, SQLAlchemyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].replace(self._uri, self.uri)
            raise TemporaryError(
                f"MLflow at {self.uri}: {reason}; check register.tracking_uri and the server, then run again"
            ) from error

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        client, name = self._client(), self._settings.experiment
        # A server knows where its artifacts go; without one MLflow would put them below the working directory.
        place = None if self._uri.startswith("http") else (self._state / "mlartifacts").as_uri()
        if client.get_experiment_by_name(name) is None:
            try:
                client.create_experiment(name, place)
            except MlflowException as error:
                if error.error_code != ALREADY_THERE:  # another task was faster
                    raise
        return str(client.get_experiment_by_name(name).experiment_id)

    def _parent(self) -> "Run":
        if outer := os.environ.get("MLFLOW_RUN_ID"):
            return self._client().get_run(outer)
        tags = {RUN_TAG: self._run_id, STAGE_TAG: PIPELINE}
        return (self._runs(tags) or [self._create(tags, self._run_id)])[0]

    def _child(self, task: str, logged: str) -> "Run":
        """Return the child that holds `logged`, else one still open, else a new one."""
        parent = self._parent()
        tags = {RUN_TAG: self._run_id, STAGE_TAG: task, PARENT_TAG: parent.info.run_id}
        children = self._runs(tags)
        for wanted in (logged, None):
            for child in children:
                if child.data.tags.get(LOGGED_TAG) == wanted:
                    return child
        return self._create(tags, task)

    def _runs(self, tags: Mapping[str, str]) -> "list[Run]":
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return list(self._client().search_runs([self._experiment()], wanted, order_by=["attributes.start_time ASC"]))

    def _create(self, tags: Mapping[str, str], name: str) -> "Run":
        """Create a run; of two tasks that did so at once, the later takes the other's."""
        created = self._client().create_run(self._experiment(), tags={**tags, NAME_TAG: name})
        first = next((run for run in self._runs(tags) if LOGGED_TAG not in run.data.tags), created)
        if first.info.run_id != created.info.run_id:
            self._client().delete_run(created.info.run_id)
        return first

    def _log_params(self, run: "Run", params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        flat = [Param(key, value[:PARAM_CHARACTERS]) for key, value in flatten(params).items()]
        for start in range(0, len(flat), PARAMS_A_CALL):
            self._client().log_batch(run.info.run_id, params=flat[start : start + PARAMS_A_CALL])

    def _log_metrics(self, run: "Run", metrics: Mapping[str, float], steps: Iterable[Mapping[str, Any]]) -> None:
        # One fixed time for all: MLflow drops a metric it has already, so that a second try adds nothing.
        rows = [_metric(name, value, run.info.start_time, 0) for name, value in metrics.items()]
        for step in steps:
            numbers = {name: value for name, value in step.items() if name != "step" and is_number(value)}
            rows += [
                _metric(f"step/{name}", value, run.info.start_time, step["step"]) for name, value in numbers.items()
            ]
        for start in range(0, len(rows), METRICS_A_CALL):
            self._client().log_batch(run.info.run_id, metrics=rows[start : start + METRICS_A_CALL])

    def _log_datasets(self, run: "Run", datasets: Sequence[DatasetUse]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    name=use.name,
                    digest=use.digest[:DATASET_DIGEST_CHARACTERS],
                    source_type="iar",
                    source=json.dumps({"registry": use.digest}),
                    profile=json.dumps(dict(use.profile)),
                ),
                [InputTag(CONTEXT_TAG, use.role), InputTag(LINEAGE_TAG, use.digest)],
            )
            for use in datasets
        ]
        if inputs:
            self._client().log_inputs(run.info.run_id, inputs)

    def _log_artifact(self, run: "Run", path: Path) -> None:
        if path.is_dir():
            self._client().log_artifacts(run.info.run_id, str(path), path.name)
        else:
            self._client().log_artifact(run.info.run_id, str(path))

    def _version_of(self, name: str, content: str) -> str | None:
        found = self._client().search_model_versions(f"name = '{name}' and tags.`{CONTENT_TAG}` = '{content}'")
        return next((str(version.version) for version in found if version.status == "READY"), None)

    def _new_version(self, name: str, folder: Path, tags: Mapping[str, str], description: str) -> str:
        run = self._child(REGISTER, "")
        self._store(run, folder)
        self._require_model(name)
        source = f"{run.info.artifact_uri}/model"
        version = self._client().create_model_version(
            name, source, run.info.run_id, tags=dict(tags), description=description[:DESCRIPTION_CHARACTERS] or None
        )
        return str(version.version)

    def _require_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client().create_registered_model(name)
        except MlflowException as error:
            if error.error_code != ALREADY_THERE:
                raise

    def _store(self, run: "Run", folder: Path) -> None:
        """Put the folder's files under the run as `model`: linked where artifacts are local files, else uploaded."""
        place = urlsplit(run.info.artifact_uri)
        if place.scheme in ("", "file"):
            link_tree(folder, Path(place.path) / "model")
        else:
            self._client().log_artifacts(run.info.run_id, str(folder), "model")
        stored = {file.path: file.file_size for file in self._files(run.info.run_id, "model")}
        for path, size in tree_sizes(folder).items():
            if stored.get(f"model/{path}") != size:
                raise PermanentError(f"MLflow at {self.uri}: {path} of {folder} did not arrive whole; run again")

    def _files(self, run_id: str, path: str) -> Iterator[Any]:
        for item in self._client().list_artifacts(run_id, path):
            if item.is_dir:
                yield from self._files(run_id, item.path)
            else:
                yield item


def quieten() -> None:
    """Turn off MLflow's chatter, its telemetry and its look for git; before its import, which reads these."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for logger in ("alembic", "mlflow"):
        logging.getLogger(logger).setLevel(logging.ERROR)


def _new_client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that make the tables; nothing a reader could act on
        return MlflowClient(uri, registry_uri=uri)


def _metric(name: str, value: float, timestamp: int, step: int) -> "Metric":
    from mlflow.entities import Metric

    return Metric(tracking_key(name), float(value), timestamp, int(step))
