"""Preflight of a cluster: what runs, training jobs and their servers need there, each finding with its fix."""

from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from iar.config import PlatformSection, RunFile
from iar.errors import IarError
from iar.services.cluster_api import ANSWER_SECONDS, ClusterApi
from iar.services.doctor import check_endpoint, check_store, check_tracking, endpoints
from iar.services.doctor_pool import check_kind, examine_pool
from iar.services.findings import Check, guarded
from iar.services.kubeflow import Kubeflow
from iar.services.orphans import check_orphans

NAMESPACE = "iar"
# From this version on Kubeflow Pipelines itself confines the pods of tasks.
LEAST_PIPELINES = Version("2.17")
# Kubeflow Pipelines' own server where it is installed, and the variables that name the images of its tasks' helpers.
SERVER, USUAL_PLACE = "ml-pipeline", "kubeflow"
HELPERS = ("V2_DRIVER_IMAGE", "V2_LAUNCHER_IMAGE")


def examine_cluster(run_file: RunFile | None, namespace: str, host: str, s3: str) -> Iterator[Check]:
    """Yield every finding about the cluster and, if given, about the servers of this run file.

    `host` is Kubeflow Pipelines, `s3` a place such as s3://bucket/prefix, "" = only that of the run file.
    """
    yield from _with_api(namespace, lambda cluster: _examine_api(cluster, run_file))
    experiment = run_file.register.experiment if run_file else "iar"
    pipelines = partial(Kubeflow, host, namespace or NAMESPACE, experiment)
    yield from guarded("pipelines", lambda: check_pipelines(pipelines(), namespace))
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


def _with_api(namespace: str, look: Callable[[ClusterApi], Iterator[Check]]) -> Iterator[Check]:
    """Yield whether the Kubernetes API is reached, then what a look at it finds."""
    try:
        cluster = ClusterApi(namespace or NAMESPACE)
        version = cluster.get("/version") or {}
        yield Check("kubernetes", "pass", f"{version.get('gitVersion', 'unknown version')} at {cluster.host}")
    except IarError as error:
        yield Check("kubernetes", "fail", str(error), "set KUBECONFIG, check its context, or run this in a pod")
    else:
        yield from look(cluster)


def _examine_api(cluster: ClusterApi, run_file: RunFile | None) -> Iterator[Check]:
    platform = run_file.platform if run_file else PlatformSection()
    store = run_file.run.store if run_file else ""
    qa_shards = run_file.qa_build.shards if run_file else 1
    yield from examine_pool(cluster, platform, run_file is not None, store, qa_shards)
    by_gitops = ("pipelines.kubeflow.org", ("v2beta1",), "pipelineversions", "pipelines by GitOps", False)
    yield from guarded("pipelineversions", partial(check_kind, cluster, *by_gitops))
    yield from check_orphans(cluster, reap=False)


def check_pipelines(pipelines: Kubeflow, namespace: str) -> Check:
    """Reach Kubeflow Pipelines with this token; look where it runs pipelines, and at the version that tasks need."""
    server = pipelines.check()
    users = "several users" if server.multi_user else "one user"
    version, source, place, here = _version(server.version), "", _place_of(pipelines.host), namespace or NAMESPACE
    if not server.multi_user and place != here:
        detail = (
            f"{pipelines.host} answers, one user: it runs pipelines in its own namespace, {place}, and not in {here}"
        )
        fix = f"use one for several users, or make account, claim and secrets in {place} and give --namespace {place}"
        return Check("pipelines", "warn", detail, fix)
    if version is None:
        source = f", as deployment {SERVER} in namespace {place} says"
        version = _installed(namespace, place)
    if version is None:
        detail = f"{pipelines.host} answers, {users}, version unknown"
        fix = f"make sure that it is {LEAST_PIPELINES} or later: it does not say (--host of its UI often does), nor is"
        return Check("pipelines", "warn", detail, f"{fix} deployment {SERVER} in namespace {place} to be read")
    detail = f"{pipelines.host} answers, {users}, version {version}{source}"
    if version < LEAST_PIPELINES:
        fix = (
            f"update it to {LEAST_PIPELINES}, or relax the namespace to baseline: pods of its tasks are not restricted"
        )
        return Check("pipelines", "warn", detail, fix)
    return Check("pipelines", "pass", detail)


def _place_of(host: str) -> str:
    """Return the namespace of the server: that of its address inside the cluster, else the usual one."""
    names = (urlsplit(host).hostname or "").split(".")
    return names[1] if names[0].startswith(SERVER) and len(names) > 1 else USUAL_PLACE


def _installed(namespace: str, place: str) -> Version | None:
    """Return the version by which the images of the server are named; None where that cannot be seen.

    Many releases of the server do not tell their version: their images were built without it.
    """
    try:
        found = ClusterApi(namespace or NAMESPACE).get(f"/apis/apps/v1/namespaces/{place}/deployments/{SERVER}") or {}
    except IarError:
        return None
    containers = found.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    helpers = [one.get("value", "") for each in containers for one in each.get("env", ()) if one["name"] in HELPERS]
    images = [*(str(each.get("image", "")) for each in containers), *helpers]
    tags = (image.partition("@")[0].rpartition("/")[2].partition(":")[2] for image in images)
    return next(filter(None, map(_version, tags)), None)


def check_mlflow(uri: str) -> Check:
    """Compare the versions of MLflow's server and client."""
    from importlib.metadata import version

    import httpx

    place = f"{uri.rstrip('/')}/version"
    try:
        reply = httpx.get(place, timeout=ANSWER_SECONDS)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        detail = f"register.tracking_uri: {place} does not answer ({type(error).__name__})"
        return Check("mlflow", "fail", detail, "start the MLflow server, and let this address through")
    client, server = version("mlflow"), _version(reply.text.strip())
    if reply.text.lstrip().startswith("<"):  # the header tells nothing: MLflow's own answer says HTML too
        detail = f"register.tracking_uri: {place} answers with a page, probably a login"
        return Check("mlflow", "fail", detail, "name the MLflow server itself, without the login before it")
    if server is None:
        return Check(
            "mlflow", "warn", f"server of unknown version, client {client}", f"make sure that {place} is MLflow"
        )
    if server.major != Version(client).major:
        return Check("mlflow", "warn", f"server {server}, client {client}", "use one major version of both")
    return Check("mlflow", "pass", f"server {server}, client {client}")


def _version(text: str) -> Version | None:
    """Return the version that a server names, None where it names none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None
