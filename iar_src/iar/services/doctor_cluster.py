"""Preflight of a cluster: what runs, training jobs and their servers need there, each finding with its fix."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from iar.config import RunFile
from iar.errors import IarError, TemporaryError, UserError
from iar.services.doctor import check_endpoint, check_store, check_tracking, endpoints
from iar.services.findings import Check, guarded
from iar.services.kubeflow import Kubeflow
from iar.services.orphans import check_orphans

ANSWER_SECONDS = 10
NAMESPACE = "iar"
STATE_VOLUME = "iar-state"
GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SHARED = {"ReadWriteMany"}
# What the launcher and whoever reads its logs do: API group, resource, verbs.
RIGHTS = (
    ("kubeflow.org", "pytorchjobs", ("create", "get", "watch", "patch", "delete")),
    ("", "pods", ("get", "list", "watch")),
    ("", "pods/log", ("get",)),
)
# API group, versions that will do with the best first, resource, what it is for, whether all stops without it.
KINDS = (
    ("kubeflow.org", ("v1",), "pytorchjobs", "training on several GPUs", True),
    ("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "localqueues", "queues", False),
    ("pipelines.kubeflow.org", ("v2beta1",), "pipelineversions", "pipelines by GitOps", False),
)
KUEUE = "kueue.x-k8s.io"
INSTALL = {
    "kubeflow.org": "install the Kubeflow training operator 1.9 or later",
    KUEUE: "install Kueue if jobs shall wait for GPUs",
    "pipelines.kubeflow.org": "install Kubeflow Pipelines in Kubernetes-native mode, or use iar submit",
}


class Cluster:
    """The Kubernetes API as this process reaches it, for one namespace."""

    def __init__(self, namespace: str) -> None:
        from kubernetes import client

        self.namespace = namespace
        self._api = client.ApiClient(_configuration())

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._api.configuration.host)

    def get(self, path: str) -> Any:
        """Return the JSON at a path; None where it does not exist. Raises UserError where it may not be read."""
        return self._call("GET", path)

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return the items of the list at a path."""
        return list((self.get(path) or {}).get("items", ()))

    def may(self, group: str, resource: str, verb: str) -> bool:
        """Ask the server whether this process may do that in the namespace."""
        kind, _, part = resource.partition("/")
        asked = {"namespace": self.namespace, "group": group, "resource": kind, "subresource": part, "verb": verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer and answer.get("status", {}).get("allowed"))

    def served(self, group: str) -> list[str]:
        """Return the versions of an API group; [] where the cluster does not have it."""
        about = self.get(f"/apis/{group}") or {}
        return [version["version"] for version in about.get("versions", ())]

    def delete(self, path: str, preconditions: dict[str, Any]) -> None:
        """Delete what is at a path, its dependents first, if it is still as the preconditions say."""
        self._call("DELETE", path, {"propagationPolicy": "Foreground", "preconditions": preconditions})

    def _call(self, verb: str, path: str, body: Any = None) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return self._api.call_api(
                path, verb, header_params={"Accept": "application/json"}, body=body, response_type="object",
                auth_settings=["BearerToken"], _return_http_data_only=True, _request_timeout=ANSWER_SECONDS,
            )  # fmt: skip
        except ApiException as error:
            if error.status == 404:
                return None
            if error.status in (401, 403):
                raise UserError(f"Kubernetes at {self.host} forbids {verb} {path} ({error.status})") from error
            raise TemporaryError(f"Kubernetes at {self.host}: {verb} {path} failed ({error.status})") from error
        except HTTPError as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise TemporaryError(f"Kubernetes at {self.host} does not answer ({reason})") from error


def examine_cluster(run_file: RunFile | None, namespace: str, host: str, s3: str) -> Iterator[Check]:
    """Yield every finding about the cluster and, if given, about the servers of this run file.

    `host` is Kubeflow Pipelines, `s3` a place such as s3://bucket/prefix, "" = only that of the run file.
    """
    yield from _with_api(namespace, lambda cluster: _examine_api(cluster, run_file))
    experiment = run_file.register.experiment if run_file else "iar"
    yield from guarded("pipelines", lambda: check_pipelines(Kubeflow(host, namespace, experiment)))
    for place in dict.fromkeys([s3, run_file.run.store if run_file else ""]):
        if place:
            yield from guarded("store", partial(check_store, place))
    if run_file is not None:
        yield from guarded("tracking", lambda: check_tracking(run_file))
        if run_file.register.tracking_uri:
            yield from guarded("mlflow", lambda: check_mlflow(run_file.register.tracking_uri))
        for role, endpoint in endpoints(run_file):
            yield from guarded(role, partial(check_endpoint, role, endpoint))


def reap(namespace: str) -> Iterator[Check]:
    """Delete the jobs of ours that a run left behind; yield a finding for each."""
    yield from _with_api(namespace, lambda cluster: check_orphans(cluster, reap=True))


def _with_api(namespace: str, look: Callable[[Cluster], Iterator[Check]]) -> Iterator[Check]:
    """Yield whether the Kubernetes API is reached, then what a look at it finds."""
    try:
        cluster = Cluster(namespace or NAMESPACE)
        version = cluster.get("/version") or {}
        yield Check("kubernetes", "pass", f"{version.get('gitVersion', 'unknown version')} at {cluster.host}")
    except IarError as error:
        yield Check("kubernetes", "fail", str(error), "set KUBECONFIG, check its context, or run this in a pod")
    else:
        yield from look(cluster)


def _examine_api(cluster: Cluster, run_file: RunFile | None) -> Iterator[Check]:
    yield from guarded("rights", lambda: check_rights(cluster))
    for group, versions, resource, purpose, needed in KINDS:
        yield from guarded(resource, partial(check_kind, cluster, group, versions, resource, purpose, needed))
    yield from guarded("queues", lambda: check_queues(cluster))
    yield from guarded("gpus", lambda: check_gpus(cluster))
    yield from guarded("storage", lambda: check_storage(cluster, run_file))
    yield from check_orphans(cluster, reap=False)


def check_rights(cluster: Cluster) -> Check:
    """Ask for every right of the launcher."""
    asked = [(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs]
    missing = [f"{verb} {resource}" for group, resource, verb in asked if not cluster.may(group, resource, verb)]
    where = f"in namespace {cluster.namespace}"
    if missing:
        fix = "bind the role of manifests/base/roles.yaml to this account"
        return Check("rights", "fail", f"may not {', '.join(missing)} {where}", fix)
    return Check("rights", "pass", f"all {len(asked)} rights of a launcher {where}")


def check_kind(
    cluster: Cluster, group: str, versions: tuple[str, ...], resource: str, purpose: str, needed: bool
) -> Check:
    """Look for a custom resource in a version that we speak."""
    bad, served = "fail" if needed else "warn", cluster.served(group)
    spoken = next((version for version in versions if version in served), "")
    if not served:
        return Check(resource, bad, f"the cluster has no {group}, needed for {purpose}", INSTALL[group])
    if not spoken:
        detail = f"{group} is served as {', '.join(served)}, {' or '.join(versions)} is needed for {purpose}"
        return Check(resource, bad, detail, INSTALL[group])
    known = {one["name"] for one in (cluster.get(f"/apis/{group}/{spoken}") or {}).get("resources", ())}
    if resource not in known:
        return Check(resource, bad, f"{group}/{spoken} has no {resource}, needed for {purpose}", INSTALL[group])
    return Check(resource, "pass", f"{group}/{spoken}, for {purpose}")


def check_queues(cluster: Cluster) -> Check:
    """Find the namespace's queues, and whether each admits jobs."""
    served = cluster.served(KUEUE)
    version = next((version for version in ("v1beta2", "v1beta1") if version in served), "")
    if not version:
        return Check("queues", "warn", "no Kueue: jobs start at once, or wait as pods", INSTALL[KUEUE])
    queues = cluster.items(f"/apis/{KUEUE}/{version}/namespaces/{cluster.namespace}/localqueues")
    if not queues:
        detail = f"Kueue is there, and no LocalQueue in namespace {cluster.namespace}"
        return Check("queues", "fail", detail, "make one that leads to the GPUs' ClusterQueue")
    for queue in queues:
        active = _condition(queue, "Active")
        if active is not None and active.get("status") != "True":
            name, reason = queue["metadata"]["name"], active.get("message", "no reason given")
            detail = f"LocalQueue {name} admits nothing: {reason}"
            return Check("queues", "fail", detail, "mend its ClusterQueue and ResourceFlavor")
    return Check("queues", "pass", ", ".join(sorted(queue["metadata"]["name"] for queue in queues)))


def check_gpus(cluster: Cluster) -> Check:
    """Count the GPUs of the nodes that take pods."""
    try:
        nodes = cluster.items("/api/v1/nodes")
    except UserError as error:
        return Check("gpus", "warn", str(error), "ask who may list nodes; runs do not need this right")
    open_nodes = [node for node in nodes if not node.get("spec", {}).get("unschedulable")]
    found = [
        (node["metadata"].get("labels", {}).get(GPU_MODEL, "unnamed GPU"), int(node["status"]["allocatable"][GPU]))
        for node in open_nodes
        if int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))
    ]
    if not found:
        detail = f"no GPU on {len(open_nodes)} nodes that take pods"
        return Check("gpus", "warn", detail, "install the GPU operator and uncordon nodes, or train on CPU")
    models = sorted({model for model, _ in found})
    return Check("gpus", "pass", f"{sum(count for _, count in found)} on {len(found)} nodes: {', '.join(models)}")


def check_storage(cluster: Cluster, run_file: RunFile | None) -> Check:
    """Find the state volume, bound, and writable from several nodes where tasks run in parallel."""
    claim = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{STATE_VOLUME}")
    if claim is None:
        return _no_claim(cluster)
    phase, modes = claim.get("status", {}).get("phase", "Pending"), set(claim.get("spec", {}).get("accessModes", ()))
    detail = f"{STATE_VOLUME} is {phase}, {', '.join(sorted(modes))}"
    if phase == "Lost":
        return Check("storage", "fail", detail, "restore its volume, or make the claim again")
    if phase != "Bound":
        return Check("storage", "warn", detail, "it binds with its first pod; else name a class in state-volume.yaml")
    shards = run_file.platform.candidate_shards if run_file else 1
    if shards > 1 and not modes & SHARED:
        fix = "use a ReadWriteMany class, or set platform.candidate_shards to 1"
        return Check("storage", "warn", f"{detail}: {shards} parallel tasks must share one node", fix)
    return Check("storage", "pass", detail)


def _no_claim(cluster: Cluster) -> Check:
    classes = cluster.items("/apis/storage.k8s.io/v1/storageclasses")
    default = [
        one["metadata"]["name"]
        for one in classes
        if one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"
    ]
    detail = f"no volume claim {STATE_VOLUME} in namespace {cluster.namespace}"
    detail += f"; default class {default[0]}" if default else "; no default storage class either"
    return Check("storage", "fail", detail, "apply an overlay of manifests/, with a class in state-volume.yaml")


def _condition(resource: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = resource.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one.get("type") == kind), None)


def check_pipelines(cluster: Kubeflow) -> Check:
    """Reach Kubeflow Pipelines with this token."""
    multi_user = cluster.check().multi_user
    return Check("pipelines", "pass", f"{cluster.host} answers, {'several users' if multi_user else 'one user'}")


def check_mlflow(uri: str) -> Check:
    """Compare the versions of MLflow's server and client."""
    from importlib.metadata import version

    import httpx

    try:
        reply = httpx.get(f"{uri.rstrip('/')}/version", timeout=ANSWER_SECONDS)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        detail = f"register.tracking_uri: {uri}/version does not answer ({type(error).__name__})"
        return Check("mlflow", "fail", detail, "start the MLflow server, and let this address through")
    server, client = reply.text.strip(), version("mlflow")
    if server.partition(".")[0] != client.partition(".")[0]:
        return Check("mlflow", "warn", f"server {server}, client {client}", "use one major version of both")
    return Check("mlflow", "pass", f"server {server}, client {client}")


def _configuration() -> Any:
    """Return the access of the pod this runs in, else of KUBECONFIG. Raises UserError where there is neither."""
    from kubernetes import client, config

    access = client.Configuration()
    access.retries = False
    try:
        config.load_incluster_config(client_configuration=access)
    except config.ConfigException:
        try:
            # Its own default is what the variable held when it was imported.
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=access)
        except config.ConfigException as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"no access to a Kubernetes cluster: {reason}") from error
    return access
