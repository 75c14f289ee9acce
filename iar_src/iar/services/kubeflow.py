"""Kubeflow Pipelines' API: pipeline versions and runs, found by their names, made where they are missing."""

import contextlib
import functools
import io
import json
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.errors import IarError, TemporaryError, UserError

TOKEN_FILE = "KF_PIPELINES_SA_TOKEN_PATH"  # as kfp itself names it
EQUALS, CONTAINS = 1, 9  # operations of KFP's filters
PAGE = 100
ANSWER_SECONDS = 60.0
IN_CLUSTER = "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
RERUN = "-rerun-"
ENDED = ("succeeded", "failed", "canceled", "skipped")


@dataclass(frozen=True)
class ClusterRun:
    """A run as KFP shows it. `state` is KFP's word in lower case; `version_id` names the compiled pipeline."""

    id: str
    name: str
    state: str
    version_id: str
    created: str

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.state not in ENDED


@dataclass(frozen=True)
class Version:
    """A compiled pipeline in KFP."""

    pipeline_id: str
    id: str
    name: str


def run_name(run_id: str, rerun: int) -> str:
    """Return the name of a run file's run, of its Nth rerun for N > 0."""
    return f"{run_id}{RERUN}{rerun}" if rerun else run_id


class Kubeflow:
    """One experiment of a KFP server. Raises UserError where access is refused, TemporaryError where it fails."""

    def __init__(self, host: str, namespace: str, experiment: str) -> None:
        self.host = host.rstrip("/") or IN_CLUSTER
        if not self.host.startswith(("http://", "https://")):
            raise UserError(f"--host {self.host}: no URL; write it with http:// or https://")
        self.experiment = experiment
        self._namespace = namespace
        self._opened: Any = None
        self._experiment_id = ""

    def check(self) -> bool:
        """Reach the server and read something with this token; return whether it has several users."""
        multi_user = self._call(lambda client: client.get_kfp_healthz()).multi_user
        self._find_experiment()
        return bool(multi_user)

    def runs(self, part_of_name: str = "", everywhere: bool = False) -> list[ClusterRun]:
        """Return the runs of the experiment, or of the whole namespace, whose name contains a text, oldest first.

        Archived ones count.
        """
        experiment = None if everywhere else self._find_experiment()
        if experiment == "":
            return []
        namespace, wanted = self._namespace or None, _filter(CONTAINS, part_of_name) if part_of_name else None
        found = self._pages(
            "runs", lambda token, client: client.list_runs(token, PAGE, "", experiment, namespace, wanted)
        )
        return sorted((_cluster_run(run) for run in found), key=lambda run: (run.created, run.id))

    def attempts(self, run_id: str) -> dict[int, ClusterRun]:
        """Return the runs of a run file by rerun number, 0 the first. Of several at once the oldest counts."""
        attempts: dict[int, ClusterRun] = {}
        for run in self.runs(run_id):
            if match := re.fullmatch(rf"{re.escape(run_id)}(?:{RERUN}([1-9]\d*))?", run.name):
                attempts.setdefault(int(match[1] or 0), run)
        return attempts

    def version(self, pipeline: str, version: str, ir: Path) -> Version:
        """Return the compiled pipeline of this name, uploaded where it is missing."""
        pipeline_id = self._find_pipeline(pipeline) or self._make_pipeline(pipeline)
        found = self.find_version(pipeline_id, version)
        if found is None:
            self._call(lambda client: client.upload_pipeline_version(str(ir), version, pipeline_id), there=True)
            found = self.find_version(pipeline_id, version)
        if found is None:
            raise TemporaryError(f"KFP at {self.host}: version {version} was uploaded and is not listed; repeat")
        return found

    def find_version(self, pipeline_id: str, name: str) -> Version | None:
        """Return the version of this name, if there is one."""
        wanted = _filter(EQUALS, name)
        found = self._pages(
            "pipeline_versions",
            lambda token, client: client.list_pipeline_versions(pipeline_id, token, PAGE, "", wanted),
        )
        return Version(pipeline_id, found[0].pipeline_version_id, name) if found else None

    def version_id(self, pipeline: str, version: str) -> str:
        """Return the id of a compiled pipeline, "" where KFP has none of this name."""
        pipeline_id = self._find_pipeline(pipeline)
        found = self.find_version(pipeline_id, version) if pipeline_id else None
        return found.id if found else ""

    def start(self, name: str, version: Version, run_file_text: str, service_account: str) -> ClusterRun:
        """Start a run. Of two started at once under one name the younger is taken back and the older returned."""
        experiment = self._find_experiment() or self._make_experiment()
        started = _cluster_run(
            self._call(
                lambda client: client.run_pipeline(
                    experiment, name, None, {"run_file": run_file_text}, version.pipeline_id, version.id,
                    service_account=service_account or None,
                )
            )
        )  # fmt: skip
        first = next((run for run in self.runs(name) if run.name == name), started)
        if first.id != started.id:
            self._call(lambda client: client.terminate_run(started.id))
            self._call(lambda client: client.delete_run(started.id))
        return first

    def _find_experiment(self) -> str:
        if not self._experiment_id:
            wanted = _filter(EQUALS, self.experiment)
            found = self._pages(
                "experiments",
                lambda token, client: client.list_experiments(token, PAGE, "", self._namespace or None, wanted),
            )
            self._experiment_id = found[0].experiment_id if found else ""
        return self._experiment_id

    def _find_pipeline(self, name: str) -> str:
        wanted = _filter(EQUALS, name)
        found = self._pages(
            "pipelines", lambda token, client: client.list_pipelines(token, PAGE, "", wanted, self._namespace or None)
        )
        return str(found[0].pipeline_id) if found else ""

    def _make_pipeline(self, name: str) -> str:
        def make(client: Any) -> Any:
            body = client.api_models.V2beta1Pipeline(name=name, display_name=name, namespace=self._namespace or None)
            return client.pipelines.pipeline_service_create_pipeline(body)

        made = self._call(make, there=True)
        return str(made.pipeline_id) if made else self._find_pipeline(name)

    def _make_experiment(self) -> str:
        made = self._call(lambda client: client.create_experiment(self.experiment), there=True)
        self._experiment_id = made.experiment_id if made else self._find_experiment()
        return self._experiment_id

    def _pages(self, items: str, page: Callable[[str, Any], Any]) -> list[Any]:
        """Return the items of all pages."""
        found: list[Any] = []
        token = ""
        while True:
            answer = self._call(functools.partial(page, token))
            found += getattr(answer, items) or []
            token = answer.next_page_token or ""
            if not token:
                return found

    def _call(self, call: Callable[[Any], Any], there: bool = False) -> Any:
        """Return what the client answers; with `there`, None where the thing to make is there already."""
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError

        try:
            with _quiet(), _patience():
                try:
                    return call(self._client())
                except ApiException as error:
                    if error.status != 401:
                        raise
                    # A token that expires is replaced in its file, perhaps between reading and sending it.
                    return call(self._client())
        except ApiException as error:
            if there and error.status == 409:
                return None
            raise self._refusal(error) from error
        except (HTTPError, OSError) as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise TemporaryError(
                f"KFP at {self.host} does not answer ({reason}); check --host and the network, then repeat"
            ) from error

    def _client(self) -> Any:
        if self._opened is None:
            self._opened = _open_client(self.host, self._namespace)
        return self._opened

    def _refusal(self, error: Any) -> IarError:
        where = f"KFP at {self.host}"
        if error.status == 401:
            return UserError(f"{where} refuses the token (401): expired or for another audience; renew {_token_file()}")
        if error.status == 403:
            return UserError(f"{where} forbids it (403): {_said(error)}; ask for the right, or check --namespace")
        if error.status in (400, 404):
            return UserError(f"{where} refuses the request ({error.status}): {_said(error)}; check --host and version")
        return TemporaryError(f"{where} failed ({error.status}): {_said(error)}; repeat the command later")


def _open_client(host: str, namespace: str) -> Any:
    """Return kfp's client, which neither repeats the health check for 25 s nor writes into the home folder."""
    from kfp.client import Client, ServiceAccountTokenVolumeCredentials

    class PlainClient(Client):  # type: ignore[misc]
        def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:
            return self._healthz_api.healthz_service_get_healthz()

        def set_user_namespace(self, namespace: str) -> None:
            self._context_setting["namespace"] = namespace

    credentials = ServiceAccountTokenVolumeCredentials() if Path(_token_path()).is_file() else None
    return PlainClient(host=host, namespace=namespace or "kubeflow", credentials=credentials)


def _token_path() -> str:
    from kfp.client import KF_PIPELINES_SA_TOKEN_PATH

    return os.environ.get(TOKEN_FILE) or str(KF_PIPELINES_SA_TOKEN_PATH)


def _token_file() -> str:
    return f"the file {_token_path()} ({TOKEN_FILE})"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep kfp's links and warnings from a command's output."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Give up on a silent server: kfp's client takes no timeout, so the default of all sockets is lent to it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _filter(operation: int, name: str) -> str:
    return json.dumps({"predicates": [{"operation": operation, "key": "display_name", "stringValue": name}]})


def _cluster_run(run: Any) -> ClusterRun:
    reference = run.pipeline_version_reference
    version = reference.pipeline_version_id if reference else run.pipeline_version_id
    # A run that was just created has no state yet.
    state = (run.state or "PENDING").lower()
    return ClusterRun(run.run_id, run.display_name, state, version or "", str(run.created_at or ""))


def _said(error: Any) -> str:
    """Return the server's own message in one line."""
    body = error.body.decode() if isinstance(error.body, bytes) else error.body or ""
    try:
        said = json.loads(body)
        text = str(said.get("message") or said.get("error") or body) if isinstance(said, dict) else body
    except ValueError:
        text = body
    return (text.strip().splitlines() or [str(error.reason)])[0][:300]
