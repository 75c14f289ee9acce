"""Jobs and their pods in a namespace of Kubernetes, as the launcher reaches them from its pod.

Each call is patient: a server that is busy or away is asked again, and only a lasting refusal is an error.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from iar.errors import IarError, PermanentError, TemporaryError, UserError
from iar.methods.job_spec import RUN_LABEL, JobKind, JobSpec, Manifest

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
BUSY = (429, 500, 502, 503, 504)
FORBIDDEN = (401, 403)
UNKNOWN_FIELD = "strict decoding error: unknown field"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
LONGEST_PAUSE = 60.0
# Between two looks where a watch ended early and said nothing.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Pace:
    """How long things are waited for, and by which clock; in seconds."""

    watch_seconds: float = 10.0
    patience_seconds: float = 900.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Cluster:
    """One kind of job in one namespace."""

    def __init__(self, client: Any, namespace: str, kind: JobKind, pace: Pace) -> None:
        from kubernetes.client import CoreV1Api, CustomObjectsApi

        self.custom = CustomObjectsApi(client)
        self.core = CoreV1Api(client)
        self.namespace = namespace
        self.kind = kind
        self.pace = pace
        self.jobs = (kind.group, kind.version, namespace, kind.plural)

    @classmethod
    def here(cls, kind: JobKind) -> "Cluster":
        """Return the cluster that this pod runs in. Raises UserError anywhere else."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise UserError(
                "platform.backend: kubeflow needs the Kubernetes client, which is not installed; "
                "pip install 'iar[cluster]'"
            ) from error
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException as error:
            raise UserError(
                f"platform.backend: kubeflow trains from a pod of the cluster, and this is none ({error}); "
                "set platform.backend to local to train here"
            ) from error
        settings.retries = False  # asked again here, where it is known what an answer means
        namespace = (ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        return cls(client.ApiClient(settings), namespace, kind, Pace())

    def get(self, name: str) -> Manifest | None:
        """Return a job, None where there is none."""
        job: Manifest | None = self._asked(
            f"read {self.kind.kind} {name}",
            lambda wait: self.custom.get_namespaced_custom_object(*self.jobs, name, _request_timeout=wait),
            absent=404,
            holds="metadata",
        )
        return job

    def create(self, spec: JobSpec) -> bool:
        """Create the job; False where one of its name is there already."""
        manifest = spec.manifest()
        manifest["metadata"] |= self._belonging(manifest["metadata"])
        made = self._asked(
            f"create {self.kind.kind} {spec.name}",
            # Strict: an older operator's server would drop what it does not know, such as a TrainJob's volumes and node
            # selector, and start the rest.
            lambda wait: self.custom.create_namespaced_custom_object(
                *self.jobs, manifest, field_validation="Strict", _request_timeout=wait
            ),
            absent=409,
        )
        return made is not None

    def adopt(self, job: Manifest) -> None:
        """Make a job that another run left behind this run's: it no longer ends with the workflow of the other."""
        about = job["metadata"]
        mine = self._belonging({"labels": {}})
        run = mine["labels"].get(RUN_LABEL)
        if not run or (about.get("labels") or {}).get(RUN_LABEL) == run:
            return
        body = {"metadata": mine | ({"uid": about["uid"]} if "uid" in about else {})}
        with contextlib.suppress(_Replaced):
            self._asked(
                f"patch {self.kind.kind} {about['name']}",
                lambda wait: self.custom.patch_namespaced_custom_object(
                    *self.jobs, about["name"], body, _request_timeout=wait
                ),
                absent=404,
                replaced=409,
            )

    def delete(self, job: Manifest) -> None:
        """Delete this very job and its pods; a newer one of the same name stays."""
        name, uid = job["metadata"]["name"], job["metadata"].get("uid")
        # Foreground: the job's object goes last, so that its absence says that no pod writes any more.
        body: Manifest = {"propagationPolicy": "Foreground"} | ({"preconditions": {"uid": uid}} if uid else {})
        with contextlib.suppress(_Replaced):
            self._asked(
                f"delete {self.kind.kind} {name}",
                lambda wait: self.custom.delete_namespaced_custom_object(
                    *self.jobs, name, body=body, _request_timeout=wait
                ),
                absent=404,
                replaced=409,
            )

    def pods(self, name: str) -> list[Manifest]:
        """Return the pods of a job, in the order of their names."""
        selector = f"{self.kind.pod_label}={name}"
        answer = self._asked(
            "list pods",
            lambda wait: _read(
                self.core.list_namespaced_pod(
                    self.namespace, label_selector=selector, _preload_content=False, _request_timeout=wait
                )
            ),
            holds="items",
        )
        return sorted(answer["items"], key=lambda pod: str(pod["metadata"]["name"]))

    def log(self, pod: str, since_seconds: int | None) -> list[str]:
        """Return the lines that a pod has written, each after its time; none where it has not started."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        since = {} if since_seconds is None else {"since_seconds": since_seconds}
        try:
            answer = self.core.read_namespaced_pod_log(
                pod, self.namespace, container=self.kind.container, timestamps=True, _preload_content=False,
                _request_timeout=(CONNECT_SECONDS, ANSWER_SECONDS), **since,
            )  # fmt: skip
            text = str(answer.data.decode("utf-8", errors="replace"))
        except (ApiException, HTTPError):
            return []  # read again at the next look
        return text.splitlines()

    def await_change(self, job: Manifest) -> None:
        """Return when the job is no longer as given, after `watch_seconds` at the latest.

        The caller then reads it itself: a watch that is refused, cut or expired costs time and nothing else.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            if not any(_concerns(event, job) for event in self._events(job)):
                self.pace.sleep(LOOK_SECONDS)
        except (ApiException, HTTPError, ValueError):
            self.pace.sleep(self.pace.watch_seconds)

    def _events(self, job: Manifest) -> Iterator[Manifest]:
        from kubernetes.watch.watch import iter_resp_lines
        from urllib3.exceptions import ReadTimeoutError

        seconds = self.pace.watch_seconds
        about = job["metadata"]
        answer = self.custom.list_namespaced_custom_object(
            *self.jobs, watch="true", field_selector=f"metadata.name={about['name']}",
            resource_version=about.get("resourceVersion", ""), timeout_seconds=max(1, int(seconds)),
            _preload_content=False, _request_timeout=(CONNECT_SECONDS, seconds),
        )  # fmt: skip
        try:
            for line in iter_resp_lines(answer):
                event = json.loads(line)
                if not (isinstance(event, dict) and isinstance(event.get("object") or {}, dict)):
                    raise ValueError(f"no event of a watch: {line}")
                yield event
        except ReadTimeoutError:
            pass  # nothing happened
        finally:
            answer.close()

    def _belonging(self, metadata: Manifest) -> Manifest:
        """Return the run's label, and the owner with which the job goes: the workflow that owns this pod."""
        pod = os.environ.get("KFP_POD_NAME") or os.environ.get("HOSTNAME", "")
        answer = self._asked(
            f"read pod {pod}",
            lambda wait: _read(
                self.core.read_namespaced_pod(pod, self.namespace, _preload_content=False, _request_timeout=wait)
            ),
            absent=404,
            holds="metadata",
        )
        about = answer["metadata"] if answer else {}
        run = about.get("labels", {}).get(RUN_LABEL)
        owners = [
            {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
            for owner in about.get("ownerReferences", ())
        ]
        labels = metadata["labels"] | ({RUN_LABEL: run} if run else {})
        return {"labels": labels} | ({"ownerReferences": owners} if owners else {})

    def _asked(
        self, what: str, call: Callable[[tuple[float, float]], Any], absent: int = 0, replaced: int = 0, holds: str = ""
    ) -> Any:
        """Return the answer, None for the status `absent`; ask again while the server is busy or away.

        An answer that is cut, or is no JSON object with the key `holds`, is asked for again too.
        Raises TemporaryError when patience ends, UserError for a right that is missing.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        until, pause = self.pace.now() + self.pace.patience_seconds, 1.0
        while True:
            try:
                answer = call((CONNECT_SECONDS, ANSWER_SECONDS))
                # The client hands out a body that is no JSON as text.
                if isinstance(answer, dict) and (not holds or holds in answer):
                    return answer
                said, wait = "an answer that is none of Kubernetes", pause
            except ApiException as error:
                if error.status == absent:
                    return None
                if error.status == replaced:
                    raise _Replaced from error
                if error.status not in BUSY:
                    raise self._refusal(what, error) from error
                said = f"{error.status} {error.reason}"
                asked = (error.headers or {}).get("Retry-After", "")
                wait = max(pause, float(asked) if asked.isdigit() else 0.0)
            except (HTTPError, JSONDecodeError, UnicodeDecodeError) as error:
                said, wait = str(error) or type(error).__name__, pause
            if self.pace.now() + wait > until:
                raise TemporaryError(
                    f"Kubernetes API: cannot {what} for {self.pace.patience_seconds:.0f} s: {said}; run the same "
                    "run again when the server answers"
                )
            self.pace.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _refusal(self, what: str, error: Any) -> IarError:
        said = _message(error)
        if error.status in FORBIDDEN:
            return UserError(
                f"Kubernetes API: may not {what} in namespace {self.namespace}: {said}; give this pod's account "
                "the rights of manifests/base/roles.yaml"
            )
        if error.status == 404:
            return UserError(
                f"Kubernetes API: cannot {what}: this cluster knows no {self.kind.kind}; install its operator or set "
                "platform.pool.job"
            )
        if UNKNOWN_FIELD in said:
            return UserError(
                f"Kubernetes API: cannot {what}: {said}; update the operator of {self.kind.kind}, or set "
                "platform.pool.job to the other kind"
            )
        return PermanentError(f"Kubernetes API: cannot {what}: {error.status} {said}")


def _read(answer: Any) -> Any:
    """Return the JSON that an answer holds; its body arrives only now, and may be cut."""
    return json.loads(answer.data)


class _Replaced(Exception):
    """The object that was meant is gone, and another has its name."""


def _concerns(event: Manifest, job: Manifest) -> bool:
    """Return whether an event says that the job is no longer as it was."""
    seen = event.get("object") or {}
    same_name = (seen.get("metadata") or {}).get("name") == job["metadata"]["name"]
    return bool(same_name and (event.get("type") == "DELETED" or seen != job))


def _message(error: Any) -> str:
    """Return what the server says in its Status object, else the HTTP reason."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"])
    return str(error.reason)
