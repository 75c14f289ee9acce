"""Kubeflow Pipelines' API: pipeline versions and runs, found by their names, made where they are missing."""

import functools
import json
import operator
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.errors import IarError, TemporaryError, UserError
from iar.methods.explain import redact
from iar.services.kfp_client import NotKfp, admission, open_client, patience, quiet, token_file

EQUALS, CONTAINS = 1, 9  # operations of KFP's filters
PAGE = 100
IN_CLUSTER = "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
RERUN = "-rerun-"
# Under which names a server, or the UI before it, tells its version; and where, the older place last.
VERSION_KEYS = ("apiServerTagName", "tag_name", "frontendTagName")
HEALTHZ = ("/apis/v2beta1/healthz", "/apis/v1beta1/healthz")
# How long the run that goes first waits for one that was started at the same time to be taken back.
YIELD_SECONDS = 30.0
LOOK_SECONDS = 1.0
LOST = ("failed", "canceled")
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


@dataclass(frozen=True)
class Start:
    """The run of a name that stays, and whether it is the one that this call started."""

    run: ClusterRun
    ours: bool


@dataclass(frozen=True)
class Server:
    """What a KFP server tells of itself; `version` is "" where it does not say."""

    multi_user: bool
    version: str


def run_name(run_id: str, rerun: int) -> str:
    """Return the name of a run file's run, of its Nth rerun for N > 0."""
    return f"{run_id}{RERUN}{rerun}" if rerun else run_id


class Kubeflow:
    """One experiment of a KFP server. Raises UserError where access is refused, TemporaryError where it fails."""

    def __init__(self, host: str, namespace: str, experiment: str) -> None:
        self._address = host.rstrip("/") or IN_CLUSTER
        self.host = redact(self._address)
        if not self.host.startswith(("http://", "https://")):
            shown = redact(f"://{self._address}").removeprefix("://")
            raise UserError(f"--host {shown}: no URL; write it with http:// or https://")
        self.experiment = experiment
        self._namespace = namespace
        self._opened: Any = None
        self._experiment_id = ""

    def check(self) -> Server:
        """Reach the server and read something with this token; return what the server tells of itself."""
        multi_user = bool(self._call(lambda client: client.get_kfp_healthz()).multi_user)
        if not multi_user:  # it refuses to be asked for a namespace
            self._namespace, self._opened = "", None
        self._find_experiment()
        return Server(multi_user, self._version())

    def _version(self) -> str:
        for path in HEALTHZ:
            try:
                told = self._call(operator.methodcaller("read", path))
            except IarError:  # not every server has both places
                continue
            for key in VERSION_KEYS:
                if isinstance(told.get(key), str) and told[key] not in ("", "unknown"):
                    return str(told[key])
        return ""

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
        return sorted((self._cluster_run(run) for run in found), key=lambda run: (run.created, run.id))

    def attempts(self, run_id: str) -> dict[int, ClusterRun]:
        """Return the runs of a run file by rerun number, 0 the first.

        Of several of one number the oldest counts that has not failed, else the oldest.
        """
        attempts: dict[int, ClusterRun] = {}
        for run in sorted(self.runs(run_id), key=lambda run: run.state in LOST):
            if match := re.fullmatch(rf"{re.escape(run_id)}(?:{RERUN}([1-9]\d*))?", run.name):
                attempts.setdefault(int(match[1] or 0), run)
        return attempts

    def twins(self, run: ClusterRun) -> list[ClusterRun]:
        """Return the other runs of the same name that have not ended.

        There is one where a submitter was killed after it started a run and before it looked who else had.
        """
        return [one for one in self.runs(run.name) if one.name == run.name and one.id != run.id and one.active]

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
        return Version(pipeline_id, self._told(found[0], "pipeline_version_id"), name) if found else None

    def version_id(self, pipeline: str, version: str) -> str:
        """Return the id of a compiled pipeline, "" where KFP has none of this name."""
        pipeline_id = self._find_pipeline(pipeline)
        found = self.find_version(pipeline_id, version) if pipeline_id else None
        return found.id if found else ""

    def start(self, name: str, version: Version, run_file_text: str, service_account: str) -> Start:
        """Start a run, or return the one of this name that was started at the same time elsewhere: only one stays."""
        experiment = self._find_experiment() or self._make_experiment()
        started = self._cluster_run(
            self._call(
                lambda client: client.run_pipeline(
                    experiment, name, None, {"run_file": run_file_text}, version.pipeline_id, version.id,
                    service_account=service_account or None,
                )
            )
        )  # fmt: skip
        stays = False
        try:
            others = self._others(started)
            stays = not others
        finally:
            if not stays:
                self._call(lambda client: client.terminate_run(started.id))
                self._call(lambda client: client.delete_run(started.id))
        return Start(started, True) if stays else Start(others[0], False)

    def _others(self, started: ClusterRun) -> list[ClusterRun]:
        """Return the runs of this name for which this one must be taken back, the oldest first; [] = it stays.

        A run stays only if a look after its start finds it alone, and two cannot: whatever clocks say, one of them
        looks after the other has started. Where both see both, the first by time and id waits for the other to be
        taken back. If it is not, it had looked before this one was there, and stays.
        """
        until = time.monotonic() + YIELD_SECONDS
        while True:
            runs = [run for run in self.runs(started.name) if run.name == started.name]
            others = [run for run in runs if run.id != started.id]
            if not others or runs[0].id != started.id or time.monotonic() > until:
                return others
            time.sleep(LOOK_SECONDS)

    def _find_experiment(self) -> str:
        if not self._experiment_id:
            wanted = _filter(EQUALS, self.experiment)
            found = self._pages(
                "experiments",
                lambda token, client: client.list_experiments(token, PAGE, "", self._namespace or None, wanted),
            )
            self._experiment_id = self._told(found[0], "experiment_id") if found else ""
        return self._experiment_id

    def _find_pipeline(self, name: str) -> str:
        wanted = _filter(EQUALS, name)
        found = self._pages(
            "pipelines", lambda token, client: client.list_pipelines(token, PAGE, "", wanted, self._namespace or None)
        )
        return self._told(found[0], "pipeline_id") if found else ""

    def _make_pipeline(self, name: str) -> str:
        def make(client: Any) -> Any:
            body = client.api_models.V2beta1Pipeline(name=name, display_name=name, namespace=self._namespace or None)
            return client.pipelines.pipeline_service_create_pipeline(body)

        made = self._call(make, there=True)
        return self._told(made, "pipeline_id") if made else self._find_pipeline(name)

    def _make_experiment(self) -> str:
        made = self._call(lambda client: client.create_experiment(self.experiment), there=True)
        self._experiment_id = self._told(made, "experiment_id") if made else self._find_experiment()
        return self._experiment_id

    def _cluster_run(self, run: Any) -> ClusterRun:
        reference = run.pipeline_version_reference
        version = reference.pipeline_version_id if reference else run.pipeline_version_id
        # A run that was just created has no state yet.
        state = (run.state or "PENDING").lower()
        id_, name = self._told(run, "run_id"), self._told(run, "display_name")
        return ClusterRun(id_, name, state, version or "", str(run.created_at or ""))

    def _told(self, answer: Any, field: str) -> str:
        """Return a field that every answer of KFP's has."""
        value = getattr(answer, field)
        if not value:
            raise UserError(f"KFP at {self.host} answers without {field}; check --host, and that it is KFP 2")
        return str(value)

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
            with quiet(), patience():
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
        except NotKfp as error:
            raise UserError(f"KFP at {self.host} answers with {error}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"KFP at {self.host} answers with bytes that are no text; {admission()}") from error
        except (HTTPError, OSError) as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise TemporaryError(
                f"KFP at {self.host} does not answer ({reason}); check --host and the network, then repeat"
            ) from error

    def _client(self) -> Any:
        if self._opened is None:
            self._opened = open_client(self._address, self._namespace)
        return self._opened

    def _refusal(self, error: Any) -> IarError:
        where = f"KFP at {self.host}"
        if error.status == 401:
            return UserError(f"{where} refuses the token (401): expired or for another audience; renew {token_file()}")
        if error.status == 403:
            return UserError(f"{where} forbids it (403): {_said(error)}; ask for the right, or check --namespace")
        if error.status in (400, 404):
            return UserError(f"{where} refuses the request ({error.status}): {_said(error)}; check --host and version")
        return TemporaryError(f"{where} failed ({error.status}): {_said(error)}; repeat the command later")


def _filter(operation: int, name: str) -> str:
    return json.dumps({"predicates": [{"operation": operation, "key": "display_name", "stringValue": name}]})


def _said(error: Any) -> str:
    """Return the server's own message in one line."""
    body = error.body.decode() if isinstance(error.body, bytes) else error.body or ""
    try:
        said = json.loads(body)
        text = str(said.get("message") or said.get("error") or body) if isinstance(said, dict) else body
    except ValueError:
        text = body
    return (text.strip().splitlines() or [str(error.reason)])[0][:300]
