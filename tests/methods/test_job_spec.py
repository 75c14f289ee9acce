"""A training as a job: what it asks of the cluster, legal for the schemas of both kinds, for every run file shipped."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from iar.config import PlatformSection, PoolSection
from iar.methods.job_spec import JobSpec, Manifest, TaskSettings, job_name, reason_of, state_of, training_job
from iar.services.run_files import load_run_file
from tests.crd_schemas import check, needs_crds

ROOT = Path(__file__).parents[2]
RUN_FILES = [*sorted((ROOT / "pipelines/runs").glob("*.yaml")), *sorted(ROOT.glob("manifests/overlays/*/run.yaml"))]
FULL = PoolSection(
    nodes=2,
    queue="pool",
    priority_class="high",
    topology_key="topology.kubernetes.io/zone",
    secrets={"HF_TOKEN": "hub/token"},
    env={"NCCL_SOCKET_IFNAME": "eth0"},
)

each_kind = pytest.mark.parametrize("job", ["pytorchjob", "trainjob"])


def made(pool: PoolSection, processes: int = 16, given: TaskSettings | None = None) -> JobSpec:
    platform = PlatformSection(backend="kubeflow", processes=processes, image="registry.example/iar:1", pool=pool)
    return training_job("/state/work/inject-0123456789abcdef", ["python", "-m", "x"], platform, given or TaskSettings())


def of_kind(pool: PoolSection, job: str) -> PoolSection:
    return PoolSection.model_validate(pool.model_dump() | {"job": job})


def pod_of(manifest: Manifest) -> Manifest:
    """Return the pod of a PyTorchJob's first replica."""
    template: Manifest = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    return template


def patched_pod_of(manifest: Manifest) -> Manifest:
    """Return the pod that a TrainJob makes of its runtime's."""
    patch: Manifest = manifest["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    template: Manifest = patch["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


@needs_crds
@each_kind
@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_run_file_makes_a_job_that_the_cluster_takes(path: Path, job: str) -> None:
    run_file = load_run_file(path, [f"platform.pool.job={job}"])
    given = TaskSettings(env=({"name": "A", "value": "b"},), resources={"limits": {"nvidia.com/gpu": "8"}})
    check(training_job("/state/work/align-0123456789abcdef", ["python"], run_file.platform, given).manifest())


@each_kind
@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_pods_of_every_run_files_job_fit_kubernetes_own_schema(path: Path, job: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    run_file = load_run_file(path, [f"platform.pool.job={job}", "platform.pool.secrets={A: b/c}"])
    manifest = training_job("/state/work/align-0", ["python"], run_file.platform, TaskSettings()).manifest()
    template = (pod_of if job == "pytorchjob" else patched_pod_of)(manifest)
    validate({"apiVersion": "v1", "kind": "Pod"} | template, "1.30", strict=True)


@needs_crds
@each_kind
@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_run_files_job_on_a_store_has_a_disk_instead_of_the_claim(path: Path, job: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    run_file = load_run_file(path, [f"platform.pool.job={job}", "run.store=s3://models/team"])
    claim = {"name": "s", "persistentVolumeClaim": {"claimName": "iar-state"}}
    data = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    mounts = {"name": "s", "mountPath": "/state"}, {"name": "d", "mountPath": "/data"}
    given = TaskSettings(volumes=(claim, data), mounts=mounts)
    place = "s3://models/team/trainings/align-0123456789abcdef"
    manifest = training_job(place, ["python"], run_file.platform, given, scratch_gb=300).manifest()
    check(manifest)
    template = (pod_of if job == "pytorchjob" else patched_pod_of)(manifest)
    validate({"apiVersion": "v1", "kind": "Pod"} | template, "1.30", strict=True)
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert volumes["state"] == {"name": "state", "emptyDir": {"sizeLimit": "300Gi"}}
    assert volumes["d"] == data and "s" not in volumes
    (container,) = template["spec"]["containers"]
    assert {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}["/state"] == "state"
    trainer = manifest["spec"].get("trainer", {}).get("resourcesPerNode")
    assert (trainer or container["resources"])["requests"]["ephemeral-storage"] == "300Gi"


@needs_crds
@each_kind
def test_every_setting_of_the_pool_has_its_place_in_the_schema(job: str) -> None:
    manifest = made(of_kind(FULL, job)).manifest()
    check(manifest)
    with pytest.raises(jsonschema.ValidationError):
        check(manifest | {"spec": manifest["spec"] | {"nodeSelectors": {}}})


def test_a_pytorchjob_asks_for_the_pool() -> None:
    manifest = made(FULL).manifest()
    spec = manifest["spec"]
    assert spec["nprocPerNode"] == "8"
    assert {name: one["replicas"] for name, one in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 1}
    template = pod_of(manifest)
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["priorityClassName"] == "high"
    assert container["name"] == "pytorch" and container["image"] == "registry.example/iar:1"
    assert container["resources"]["limits"] == {"cpu": "64", "memory": "768Gi", "nvidia.com/gpu": "8"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/state"]]["persistentVolumeClaim"] == {"claimName": "iar-state"}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    env = {one["name"]: one for one in container["env"]}
    assert env["HF_TOKEN"] == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert env["NCCL_SOCKET_IFNAME"]["value"] == "eth0"
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "pool"
    assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    zone = template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
    assert zone == "topology.kubernetes.io/zone"


def test_a_job_neither_restarts_by_itself_nor_outlives_its_limits() -> None:
    # Which end is worth another try, exit code 4 or a lost node, only the launcher knows.
    spec = made(FULL).manifest()["spec"]
    assert {one["restartPolicy"] for one in spec["pytorchReplicaSpecs"].values()} == {"Never"}
    assert spec["runPolicy"] == {
        "activeDeadlineSeconds": 72 * 3600,
        "backoffLimit": 0,
        "cleanPodPolicy": "Running",
        "ttlSecondsAfterFinished": 86_400,
        "suspend": True,
    }


def test_without_a_queue_a_job_starts_at_once_and_pods_keep_together_by_affinity() -> None:
    manifest = made(PoolSection(topology_key="zone")).manifest()
    assert manifest["spec"]["runPolicy"]["suspend"] is False
    assert not {label for label in manifest["metadata"]["labels"] if "kueue" in label}
    (term,) = pod_of(manifest)["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "zone"
    name = manifest["metadata"]["name"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"training.kubeflow.org/job-name": name}


def test_a_trainjob_says_the_same() -> None:
    manifest = made(of_kind(FULL, "trainjob")).manifest()
    trainer, pod = manifest["spec"]["trainer"], patched_pod_of(manifest)["spec"]
    other = made(FULL).manifest()
    template = pod_of(other)["spec"]
    (container,) = template["containers"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == container["resources"]
    assert trainer["env"] == container["env"] and trainer["command"] == container["command"]
    for key in ("nodeSelector", "tolerations", "volumes", "securityContext", "terminationGracePeriodSeconds"):
        assert pod[key] == template[key]
    assert pod["containers"][0]["volumeMounts"] == container["volumeMounts"]
    assert manifest["spec"]["suspend"] is True and manifest["spec"]["runtimeRef"] == {"name": "torch-distributed"}


@each_kind
def test_pods_meet_pod_security_restricted(job: str) -> None:
    manifest = made(of_kind(FULL, job)).manifest()
    pod = (pod_of if job == "pytorchjob" else patched_pod_of)(manifest)["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert pod["containers"][0]["securityContext"] == confined
    assert pod.get("automountServiceAccountToken", False) is False


def test_a_pool_of_cpus_asks_for_no_gpu() -> None:
    pod = pod_of(made(PoolSection(gpu="", node_selector={}, tolerations=())).manifest())["spec"]
    assert set(pod["containers"][0]["resources"]["limits"]) == {"cpu", "memory"}
    assert "nodeSelector" not in pod and "tolerations" not in pod


def test_what_is_set_on_the_task_goes_before_the_pool() -> None:
    given = TaskSettings(
        env=({"name": "NCCL_DEBUG", "value": "INFO"},),
        volumes=({"name": "other", "persistentVolumeClaim": {"claimName": "mine"}},),
        mounts=({"name": "other", "mountPath": "/state"},),
        node_selector={"pool": "b"},
        tolerations=({"key": "b"},),
        resources={"limits": {"nvidia.com/gpu": "4"}, "requests": {"cpu": "2"}},
    )
    pod = pod_of(made(PoolSection(), given=given).manifest())["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"] == {"pool": "b"} and pod["tolerations"] == [{"key": "b"}]
    assert [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/state"] == ["other"]
    assert {one["name"]: one.get("value") for one in container["env"]}["NCCL_DEBUG"] == "INFO"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1536Gi", "nvidia.com/gpu": "4"}


@pytest.mark.parametrize("place", ["/state/work/inject-0123", "/a/Ünïcode_x", "/x/" + "long-" * 40, "/"])
def test_a_name_is_legal_and_of_one_place_only(place: str) -> None:
    name = job_name(place)
    # What operators append must still be a name of a service, hence begin with a letter and stay below 64.
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name) and len(name) <= 50
    assert name == job_name(place) != job_name(place + "/x")


def test_nodes_share_the_processes_evenly() -> None:
    with pytest.raises(
        ValueError, match=r"processes 8 cannot be shared evenly by 3 nodes; set processes to a multiple"
    ):
        PlatformSection(processes=8, pool=PoolSection(nodes=3))


def status(*conditions: tuple[str, str], **more: Any) -> Manifest:
    listed = [{"type": name, "status": holds, "reason": name, "message": "m"} for name, holds in conditions]
    return {"kind": "PyTorchJob", "status": {"conditions": listed} | more}


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"kind": "PyTorchJob"}, "waiting"),
        (status(("Created", "True")), "waiting"),
        (status(("Created", "True"), ("Running", "True")), "running"),
        (status(("Running", "False"), ("Suspended", "True")), "waiting"),
        (status(("Running", "False"), ("Restarting", "True")), "waiting"),
        (status(("Running", "False"), ("Failed", "True")), "failed"),
        (status(("Running", "False"), ("Succeeded", "True")), "succeeded"),
        (status(("Running", "True"), ("Succeeded", "False")), "running"),
        (status(("Complete", "True")), "succeeded"),
        (status(("Suspended", "False"), jobsStatus=[{"name": "node", "active": 1, "ready": 1}]), "running"),
        # Its pods wait for a node, or for their image.
        (status(("Suspended", "False"), jobsStatus=[{"name": "node", "active": 1, "ready": 0}]), "waiting"),
        (status(("Suspended", "False"), jobsStatus=[{"name": "node", "active": 0, "ready": 0}]), "waiting"),
    ],
)
def test_the_state_follows_from_conditions_that_hold(job: Manifest, state: str) -> None:
    assert state_of(job) == state


def test_the_reason_is_what_the_operator_says_last() -> None:
    assert reason_of(status(("Created", "True"), ("Failed", "True"), ("Running", "False"))) == "Failed: m"
    assert reason_of({"kind": "TrainJob"}) == "no word from the operator of TrainJob"
