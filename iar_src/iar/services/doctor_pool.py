"""Preflight of a run file's pool: its kind of job, and all that it names, looked up in the cluster."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from iar.config import PlatformSection, PoolSection
from iar.errors import UserError
from iar.methods.job_spec import KINDS, JobKind
from iar.services.cluster_api import ClusterApi, Forbidden
from iar.services.findings import Check, guarded

GPU_MODEL = "nvidia.com/gpu.product"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SHARED = {"ReadWriteMany"}
KUEUE, KUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
INSTALL = {
    "kubeflow.org": "install the Kubeflow training operator 1.9 or later, or set platform.pool.job to trainjob",
    "trainer.kubeflow.org": "install Kubeflow Trainer 2.2 or later, or set platform.pool.job to pytorchjob",
    KUEUE: "install Kueue if jobs shall wait for GPUs",
    "pipelines.kubeflow.org": "install Kubeflow Pipelines in Kubernetes-native mode, or use iar submit",
}
# What the launcher and whoever reads its logs do: resource, verbs; of the job's kind, then of the core API.
JOB_VERBS = ("create", "get", "watch", "patch", "delete")
POD_RIGHTS = (("pods", ("get", "list", "watch")), ("pods/log", ("get",)))


def examine_pool(
    cluster: ClusterApi, platform: PlatformSection, named: bool, store: str, qa_shards: int = 1
) -> Iterator[Check]:
    """Yield every finding about the pool; `named` = it is that of a run file, so what it names must be there.

    With a `store` jobs mount no claim.
    """
    pool = platform.pool
    kind = KINDS[pool.job]
    yield from guarded("rights", lambda: check_rights(cluster, kind))
    job = partial(check_kind, cluster, kind.group, (kind.version,), kind.plural, "training on several GPUs", True)
    yield from guarded(kind.plural, job)
    queues = partial(check_kind, cluster, KUEUE, KUEUE_VERSIONS, "localqueues", "queues", bool(pool.queue))
    yield from guarded("localqueues", queues)
    yield from guarded("queues", lambda: check_queues(cluster, pool.queue, named))
    yield from guarded("gpus", lambda: check_gpus(cluster, platform) if named else count_gpus(cluster))
    yield from guarded("storage", lambda: check_storage(cluster, platform, store, qa_shards))
    if named:
        yield from check_references(cluster, pool, kind)


def check_rights(cluster: ClusterApi, kind: JobKind) -> Check:
    """Ask for every right of the launcher."""
    asked = [(kind.group, kind.plural, verb) for verb in JOB_VERBS]
    asked += [("", resource, verb) for resource, verbs in POD_RIGHTS for verb in verbs]
    missing = [f"{verb} {resource}" for group, resource, verb in asked if not cluster.may(group, resource, verb)]
    where = f"in namespace {cluster.namespace}"
    if missing:
        fix = "bind the role of manifests/base/roles.yaml to this account"
        return Check("rights", "fail", f"may not {', '.join(missing)} {where}", fix)
    return Check("rights", "pass", f"all {len(asked)} rights of a launcher {where}")


def check_kind(
    cluster: ClusterApi, group: str, versions: tuple[str, ...], resource: str, purpose: str, needed: bool
) -> Check:
    """Look for a custom resource in a version that we speak, the best first; `needed` = all stops without it."""
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


def check_queues(cluster: ClusterApi, queue: str, named: bool) -> Check:
    """Find the pool's queue and whether it admits jobs; without a run file, every queue of the namespace."""
    if named and not queue:
        return Check("queues", "pass", "platform.pool.queue is empty: jobs start at once, or wait as pods")
    version = _kueue(cluster)
    if not version:
        lost = f"platform.pool.queue: {queue} needs Kueue, and jobs stay suspended without"
        detail = lost if queue else "no Kueue: jobs start at once, or wait as pods"
        return Check("queues", "fail" if queue else "warn", detail, INSTALL[KUEUE])
    place = f"/apis/{KUEUE}/{version}/namespaces/{cluster.namespace}/localqueues"
    try:
        found = [cluster.get(f"{place}/{queue}")] if queue else cluster.items(place)
    except Forbidden as error:
        return Check("queues", "warn", str(error), "ask who may read localqueues; runs do not need this right")
    queues = [one for one in found if one is not None]
    if not queues:
        lost = f"platform.pool.queue: no LocalQueue {queue} in namespace {cluster.namespace}"
        detail = lost if queue else f"Kueue is there, and no LocalQueue in namespace {cluster.namespace}"
        return Check("queues", "fail", detail, "make one that leads to the GPUs' ClusterQueue, or name another")
    for one in queues:
        active = _condition(one, "Active")
        if active is not None and active.get("status") != "True":
            reason = active.get("message", "no reason given")
            detail = f"LocalQueue {one['metadata']['name']} admits nothing: {reason}"
            return Check("queues", "fail", detail, "mend its ClusterQueue and ResourceFlavor")
    return Check("queues", "pass", ", ".join(sorted(one["metadata"]["name"] for one in queues)))


def check_gpus(cluster: ClusterApi, platform: PlatformSection) -> Check:
    """Compare the nodes that take the pool's pods with what these ask for."""
    pool, ask = platform.pool, platform.processes // platform.pool.nodes if platform.pool.gpu else 0
    try:
        nodes = cluster.items("/api/v1/nodes")
    except Forbidden as error:
        return _unseen_nodes(error)
    where = "".join(f" with {label}={value}" for label, value in pool.node_selector.items())
    fitting = [node for node in nodes if _takes(node, pool)]
    if not fitting:
        fix = "correct platform.pool.node_selector and tolerations, or add such nodes"
        return Check("gpus", "fail", f"platform.pool: no node{where} takes its pods", fix)
    if not ask:
        return Check("gpus", "pass", f"platform.pool.gpu is empty: trains on CPUs, {len(fitting)} nodes{where}")
    counts = [_amount(node, pool.gpu) for node in fitting]
    detail = f"{sum(counts)} {pool.gpu} on {len(fitting)} nodes{where}; a job asks for {pool.nodes} x {ask}"
    if sum(count // ask for count in counts) < pool.nodes:
        fix = "correct platform.processes, pool.nodes, pool.gpu or pool.node_selector, or add such nodes"
        return Check("gpus", "fail", f"platform.processes: {detail}", fix)
    return Check("gpus", "pass", detail)


def count_gpus(cluster: ClusterApi) -> Check:
    """Count the GPUs of the nodes that take pods."""
    gpu = PoolSection().gpu
    try:
        nodes = cluster.items("/api/v1/nodes")
    except Forbidden as error:
        return _unseen_nodes(error)
    open_nodes = [node for node in nodes if not node.get("spec", {}).get("unschedulable")]
    found = [
        (_labels(node).get(GPU_MODEL, "unnamed GPU"), count) for node in open_nodes if (count := _amount(node, gpu))
    ]
    if not found:
        detail = f"no GPU on {len(open_nodes)} nodes that take pods"
        return Check("gpus", "warn", detail, "install the GPU operator and uncordon nodes, or train on CPU")
    models = sorted({model for model, _ in found})
    return Check("gpus", "pass", f"{sum(count for _, count in found)} on {len(found)} nodes: {', '.join(models)}")


def _unseen_nodes(error: UserError) -> Check:
    return Check("gpus", "warn", str(error), "ask who may list nodes; runs do not need this right")


def _takes(node: dict[str, Any], pool: PoolSection) -> bool:
    """Return whether a node may get pods of the pool: open, of its labels, and without taints that keep them off."""
    spec = node.get("spec") or {}
    kept_off = [
        taint
        for taint in spec.get("taints") or ()
        # The pool tolerates NoSchedule; PreferNoSchedule keeps nobody off.
        if taint["effect"] == "NoExecute" or (taint["effect"] == "NoSchedule" and taint["key"] not in pool.tolerations)
    ]
    return not spec.get("unschedulable") and not kept_off and pool.node_selector.items() <= _labels(node).items()


def _labels(node: dict[str, Any]) -> dict[str, str]:
    return node["metadata"].get("labels") or {}


def _amount(node: dict[str, Any], gpu: str) -> int:
    return int(node.get("status", {}).get("allocatable", {}).get(gpu, 0))


def check_storage(cluster: ClusterApi, platform: PlatformSection, store: str, qa_shards: int = 1) -> Check:
    """Find the state volume, bound, and writable from several nodes where tasks or a job's pods are on several."""
    name, nodes = platform.pool.state_claim, platform.pool.nodes
    shards = max(platform.candidate_shards, qa_shards)
    if not name:
        return Check(
            "storage", "pass", f"no volume claim is needed: tasks and jobs have disks of their own, and {store}"
        )
    try:
        claim = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{name}")
    except Forbidden as error:
        fix = "ask who may get persistentvolumeclaims; runs do not need this right"
        return Check("storage", "warn", str(error), fix)
    if claim is None:
        return _no_claim(cluster, name)
    phase, modes = claim.get("status", {}).get("phase", "Pending"), set(claim.get("spec", {}).get("accessModes", ()))
    detail = f"{name} is {phase}, {', '.join(sorted(modes))}"
    if phase == "Lost":
        return Check("storage", "fail", detail, "restore its volume, or make the claim again")
    if phase != "Bound":
        return Check("storage", "warn", detail, "it binds with its first pod; else name a class in state-volume.yaml")
    if shards > 1 and not modes & SHARED:
        fix = "use a ReadWriteMany class, or set platform.candidate_shards and qa_build.shards to 1"
        return Check("storage", "warn", f"{detail}: {shards} parallel tasks must share one node", fix)
    if nodes > 1 and not store and not modes & SHARED:
        fix = "use a ReadWriteMany class, or set run.store, with which jobs mount no claim"
        return Check("storage", "fail", f"{detail}: the {nodes} pods of a job must share it from as many nodes", fix)
    return Check("storage", "pass", detail)


def _no_claim(cluster: ClusterApi, name: str) -> Check:
    detail = f"no volume claim {name} in namespace {cluster.namespace}"
    fix = "apply an overlay of manifests/, with a class in state-volume.yaml, or correct platform.pool.state_claim"
    try:
        classes = cluster.items("/apis/storage.k8s.io/v1/storageclasses")
    except Forbidden:
        return Check("storage", "fail", detail, fix)
    default = [
        one["metadata"]["name"]
        for one in classes
        if one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"
    ]
    detail += f"; default class {default[0]}" if default else "; no default storage class either"
    return Check("storage", "fail", detail, fix)


def check_references(cluster: ClusterApi, pool: PoolSection, kind: JobKind) -> Iterator[Check]:
    """Look up by name what else a job refers to: its priority, its runtime, its secrets."""
    for name, key, what, path in _references(cluster, pool, kind):
        yield from guarded(name, partial(check_there, cluster, name, f"platform.pool.{key}", what, path))


def _references(cluster: ClusterApi, pool: PoolSection, kind: JobKind) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each reference its check's name, its key in the pool, what it is, and its path in the API."""
    priority, here = pool.priority_class, f"/api/v1/namespaces/{cluster.namespace}"
    if priority and pool.job == "pytorchjob":
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{priority}"
        yield "priority", "priority_class", f"PriorityClass {priority}", path
    if priority and pool.queue and (version := _kueue(cluster)):
        path = f"/apis/{KUEUE}/{version}/workloadpriorityclasses/{priority}"
        yield "queue priority", "priority_class", f"WorkloadPriorityClass {priority}", path
    if pool.job == "trainjob":
        path = f"/apis/{kind.group}/{kind.version}/clustertrainingruntimes/{pool.runtime}"
        yield "runtime", "runtime", f"ClusterTrainingRuntime {pool.runtime}", path
    for secret in sorted({place.partition("/")[0] for place in pool.secrets.values()}):
        yield "secrets", "secrets", f"Secret {secret} in namespace {cluster.namespace}", f"{here}/secrets/{secret}"


def check_there(cluster: ClusterApi, name: str, key: str, what: str, path: str) -> Check:
    """Look whether what a key refers to exists."""
    try:
        found = cluster.has(path)
    except Forbidden as error:
        return Check(name, "warn", f"{key}: {error}", f"ask who may get it for {what}; runs do not need this right")
    if not found:
        return Check(name, "fail", f"{key}: there is no {what}", f"make it, or correct {key}")
    return Check(name, "pass", what)


def _kueue(cluster: ClusterApi) -> str:
    """Return the best version of Kueue's API that the cluster serves, "" without Kueue."""
    served = cluster.served(KUEUE)
    return next((version for version in KUEUE_VERSIONS if version in served), "")


def _condition(resource: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = resource.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one.get("type") == kind), None)
