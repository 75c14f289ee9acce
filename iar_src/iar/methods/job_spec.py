"""A training as a cluster sees it: one specification, written as PyTorchJob v1 or as TrainJob of Trainer v2.

Kubeflow's operators make the pods, tell each its place (PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT) and report
conditions, which `state_of` reads. A failed pod fails its job at once: whether another attempt makes sense depends on
exit codes and on what the ranks wrote down, which no operator knows, so the launcher decides.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from iar.config import PlatformSection, PoolSection
from iar.methods.digest import digest_json

Manifest = dict[str, Any]
State = Literal["waiting", "running", "succeeded", "failed"]

# Where every image of ours keeps its state (IAR_STATE).
STATE = "/state"
USER = 10001
MANAGER = "iar"
MANAGED_BY = "app.kubernetes.io/managed-by"
KEY = "iar/key"
# Kubeflow's own, on all that a run makes: the run's id.
RUN_LABEL = "pipeline/runid"
QUEUE = "kueue.x-k8s.io/queue-name"
# A job's object stays this long, for whoever wants to look at it.
KEPT_SECONDS = 86_400
# Services and pods add suffixes to a name of at most 63 characters.
NAME_CHARACTERS = 50
ISTIO = {"sidecar.istio.io/inject": "false"}


@dataclass(frozen=True)
class JobKind:
    """How Kubernetes knows a kind of job: its place in the API, its pods' label and its training container."""

    kind: str
    group: str
    version: str
    plural: str
    pod_label: str
    container: str


KINDS = {
    "pytorchjob": JobKind(
        "PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", "training.kubeflow.org/job-name", "pytorch"
    ),
    "trainjob": JobKind(
        "TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs", "jobset.sigs.k8s.io/jobset-name", "node"
    ),
}


@dataclass(frozen=True)
class TaskSettings:
    """What a pipeline task was given in Kubernetes' own terms; it goes before the run file's pool."""

    env: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    tolerations: tuple[Manifest, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Manifest = field(default_factory=dict)
    resources: Manifest = field(default_factory=dict)


@dataclass(frozen=True)
class JobSpec:
    """One training: who it is, what each of its pods runs, and on which pool.

    `scratch_gb`: GiB of each node's own disk, where inputs come from a store; 0 = the task's state volume.
    """

    name: str
    key: str
    command: tuple[str, ...]
    image: str
    processes_per_node: int
    pool: PoolSection
    given: TaskSettings = TaskSettings()
    scratch_gb: int = 0

    @property
    def kind(self) -> JobKind:
        """The kind of job that carries it out."""
        return KINDS[self.pool.job]

    def owns(self, job: Manifest) -> bool:
        """Return whether a job of this name in the cluster is this training."""
        about = job["metadata"]
        ours = (about.get("labels") or {}).get(MANAGED_BY) == MANAGER
        return bool(ours and (about.get("annotations") or {}).get(KEY) == self.key)

    def manifest(self) -> Manifest:
        """Return the job as Kubernetes takes it."""
        labels = {MANAGED_BY: MANAGER, "app.kubernetes.io/name": "iar-train"}
        if self.pool.queue:
            labels[QUEUE] = self.pool.queue
        if self.pool.queue and self.pool.priority_class:
            labels["kueue.x-k8s.io/priority-class"] = self.pool.priority_class
        about = {"name": self.name, "labels": labels, "annotations": {KEY: self.key}}
        spec = pytorchjob(self) if self.pool.job == "pytorchjob" else trainjob(self)
        kind = self.kind
        return {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": about, "spec": spec}


def job_name(place: str) -> str:
    """Return the legal name of the training that writes to the folder `place`: readable end and digest."""
    readable = re.sub(r"[^a-z0-9]+", "-", place.rstrip("/").rpartition("/")[2].lower()).strip("-")
    digest = digest_json(place)[:10]
    return f"iar-{readable[: NAME_CHARACTERS - len('iar--') - len(digest)].strip('-')}-{digest}"


def training_job(
    place: str, command: Iterable[str], platform: PlatformSection, given: TaskSettings, scratch_gb: int = 0
) -> JobSpec:
    """Return the job that trains into `place`, a folder or a place in a store: the same place is the same training."""
    processes, key = platform.processes // platform.pool.nodes, digest_json(place)
    return JobSpec(
        job_name(place), key, tuple(command), platform.image, processes, platform.pool, given, scratch_gb
    )  # fmt: skip


def pytorchjob(spec: JobSpec) -> Manifest:
    """Return the `spec` of a PyTorchJob v1."""
    pod = _pod(spec) | {"restartPolicy": "Never"}
    if spec.pool.priority_class:
        pod["priorityClassName"] = spec.pool.priority_class
    (container,) = pod["containers"]
    container |= {"image": spec.image, "command": list(spec.command), "resources": _resources(spec)}
    container |= {"env": _env(spec)}
    replica = {"restartPolicy": "Never", "template": {"metadata": _pod_metadata(spec), "spec": pod}}
    replicas = {"Master": {"replicas": 1} | replica}
    if spec.pool.nodes > 1:
        replicas["Worker"] = {"replicas": spec.pool.nodes - 1} | replica
    policy = {
        "activeDeadlineSeconds": _run_seconds(spec),
        "backoffLimit": 0,
        "cleanPodPolicy": "Running",
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "suspend": bool(spec.pool.queue),
    }
    return {"nprocPerNode": str(spec.processes_per_node), "runPolicy": policy, "pytorchReplicaSpecs": replicas}


def trainjob(spec: JobSpec) -> Manifest:
    """Return the `spec` of a TrainJob; how often its runtime restarts pods is the runtime's own setting."""
    template = {"metadata": _pod_metadata(spec), "spec": _pod(spec)}
    patch = {"name": "node", "template": {"spec": {"template": template}}}
    trainer = {
        "image": spec.image,
        "command": list(spec.command),
        "numNodes": spec.pool.nodes,
        "numProcPerNode": spec.processes_per_node,
        "resourcesPerNode": _resources(spec),
        "env": _env(spec),
    }
    return {
        "runtimeRef": {"name": spec.pool.runtime},
        "suspend": bool(spec.pool.queue),
        "activeDeadlineSeconds": _run_seconds(spec),
        "trainer": trainer,
        "runtimePatches": [
            {
                "manager": "iar/launcher",
                "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}},
            }
        ],
    }


def state_of(job: Manifest) -> State:
    """Return where a job of either kind stands; suspended, created and restarting are all waiting.

    A TrainJob counts pods that wait for a node or an image as active; it is ready when all of them run.
    """
    status = job.get("status") or {}
    holds = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    if holds & {"Succeeded", "Complete"}:
        return "succeeded"
    if "Failed" in holds:
        return "failed"
    if "Suspended" in holds or "Restarting" in holds:
        return "waiting"
    ready = any(one.get("ready") for one in status.get("jobsStatus") or ())
    return "running" if "Running" in holds or ready else "waiting"


def reason_of(job: Manifest) -> str:
    """Return what the newest condition that holds says: "reason: message", or "no word from the operator"."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    said = [f"{one.get('reason')}: {one.get('message')}" for one in conditions if one["status"] == "True"]
    return said[-1] if said else f"no word from the operator of {job.get('kind')}"


def _pod(spec: JobSpec) -> Manifest:
    """Return what both kinds say of a pod: confined, on the pool, with volumes; its container has mounts only."""
    shared_memory = {"medium": "Memory", "sizeLimit": f"{spec.pool.shared_memory_gb:g}Gi"}
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": shared_memory}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    given_mounts, given_volumes = _given_volumes(spec)
    if STATE not in {mount["mountPath"] for mount in given_mounts}:
        claim = {"persistentVolumeClaim": {"claimName": spec.pool.state_claim}}
        scratch = {"emptyDir": {"sizeLimit": f"{spec.scratch_gb}Gi"}}
        volumes.append({"name": "state"} | (scratch if spec.scratch_gb else claim))
        mounts.append({"name": "state", "mountPath": STATE})
    identity = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in spec.pool.tolerations]
    pod: Manifest = {
        "securityContext": identity | {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": spec.pool.grace_seconds,
        "nodeSelector": dict(spec.given.node_selector) or spec.pool.node_selector,
        "tolerations": list(spec.given.tolerations) or tolerated,
        "affinity": spec.given.affinity or _together(spec),
        "volumes": volumes + given_volumes,
        "containers": [
            {
                "name": spec.kind.container,
                "volumeMounts": mounts + given_mounts,
                "securityContext": confined,
            }
        ],
    }
    # Training asks nothing of the Kubernetes API. A TrainJob leaves this to its runtime.
    account = {"automountServiceAccountToken": False} if spec.pool.job == "pytorchjob" else {}
    return {key: value for key, value in pod.items() if value} | account


def _given_volumes(spec: JobSpec) -> tuple[list[Manifest], list[Manifest]]:
    """Return the task's mounts and volumes; its state volume is not for a job that has a disk of its own."""
    mounts = [mount for mount in spec.given.mounts if not (spec.scratch_gb and mount["mountPath"] == STATE)]
    left_out = {mount["name"] for mount in spec.given.mounts} - {mount["name"] for mount in mounts}
    return mounts, [volume for volume in spec.given.volumes if volume["name"] not in left_out]


def _pod_metadata(spec: JobSpec) -> Manifest:
    annotations = dict(ISTIO)
    if spec.pool.queue and spec.pool.topology_key:
        annotations["kueue.x-k8s.io/podset-preferred-topology"] = spec.pool.topology_key
    return {"labels": {MANAGED_BY: MANAGER, "app.kubernetes.io/name": "iar-train"} | ISTIO, "annotations": annotations}


def _together(spec: JobSpec) -> Manifest:
    """Return the affinity that keeps pods near each other; with a queue, Kueue places them by its annotation."""
    if not spec.pool.topology_key or spec.pool.queue:
        return {}
    term = {
        "labelSelector": {"matchLabels": {spec.kind.pod_label: spec.name}},
        "topologyKey": spec.pool.topology_key,
    }
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    }


def _env(spec: JobSpec) -> list[Manifest]:
    """Return the variables, each once: the task's before the pool's."""
    variables: dict[str, Manifest] = {"IAR_STATE": {"name": "IAR_STATE", "value": STATE}}
    variables |= {name: {"name": name, "value": value} for name, value in spec.pool.env.items()}
    for name, place in spec.pool.secrets.items():
        secret, _, key = place.partition("/")
        variables[name] = {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return list((variables | {one["name"]: one for one in spec.given.env}).values())


def _resources(spec: JobSpec) -> Manifest:
    """Return equal requests and limits, so that no pod is evicted for another's sake; the task's go first."""
    pool, processes = spec.pool, spec.processes_per_node
    amounts = {
        "cpu": f"{pool.cpus_per_process * processes:g}",
        "memory": f"{pool.memory_gb_per_process * processes:g}Gi",
    }
    if pool.gpu:
        amounts[pool.gpu] = str(processes)
    given = spec.given.resources
    limits = amounts | (given.get("limits") or {})
    # Asked for, so that the node has it; the limit is that of the volume.
    disk = {"ephemeral-storage": f"{spec.scratch_gb}Gi"} if spec.scratch_gb else {}
    return {"limits": limits, "requests": limits | disk | (given.get("requests") or {})}


def _run_seconds(spec: JobSpec) -> int:
    return max(1, int(spec.pool.run_hours * 3600))
