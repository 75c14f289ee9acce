"""The preflight of a cluster, against kmock's Kubernetes emulator, a KFP double and an S3 server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar import cli
from iar.config import PlatformSection, RunFile
from iar.services.cluster_api import ClusterApi
from iar.services.doctor_cluster import examine_cluster
from iar.services.doctor_pool import check_storage
from iar.services.findings import Check
from iar.services.kubeflow import Kubeflow, Server
from tests.services.chat_server import Answer, serve
from tests.services.cluster_emulator import Cluster, config, emulated
from tests.services.kfp_double import KfpDouble, served
from tests.services.s3_server import s3_server

RUN_FILE = RunFile.model_validate(
    {"run": {"name": "x"}, "documents": {"path": "x"}, "platform": {"backend": "kubeflow", "candidate_shards": 4}}
)
SELECTED = "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB"
GPU_NODE = {
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}},
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with everything a run needs."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with emulated(tmp_path / "kubeconfig") as made:
        for resource in ("kubeflow.org/v1/pytorchjobs", "pipelines.kubeflow.org/v2beta1/pipelineversions"):
            made.resources[resource].namespaced = True
        queue("True", "", made)
        made.objects["v1/nodes", None, "n1"] = GPU_NODE
        made.objects["v1/persistentvolumeclaims", "iar", "iar-state"] = claim("Bound", "ReadWriteMany")
        yield made


@pytest.fixture
def kfp() -> Iterator[KfpDouble]:
    with served(KfpDouble()) as double:
        double.about["multi_user"] = True
        yield double


PLACES = {
    "v1/secrets": True,
    "scheduling.k8s.io/v1/priorityclasses": False,
    "kueue.x-k8s.io/v1beta1/workloadpriorityclasses": False,
}


def queue(status: str, message: str, cluster: Cluster) -> None:
    conditions = [{"type": "Active", "status": status, "message": message}]
    value = {"metadata": {"name": "gpus"}, "status": {"conditions": conditions}}
    cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "gpus"] = value


def claim(phase: str, mode: str) -> dict[str, Any]:
    return {"metadata": {"name": "iar-state"}, "spec": {"accessModes": [mode]}, "status": {"phase": phase}}


def pool_of(processes: int = 1, **pool: object) -> RunFile:
    platform = {"backend": "kubeflow", "processes": processes, "candidate_shards": 4, "pool": pool}
    return RunFile.model_validate({"run": {"name": "x"}, "documents": {"path": "x"}, "platform": platform})


def look(kfp: KfpDouble, run_file: RunFile | None = RUN_FILE, s3: str = "") -> dict[str, Check]:
    return {check.name: check for check in examine_cluster(run_file, "", kfp.url, s3)}


def bad(checks: dict[str, Check]) -> dict[str, tuple[str, str]]:
    """Return status and detail of all that does not pass; each says what to do."""
    assert all(check.fix or "; " in check.detail for check in checks.values() if check.status != "pass")
    return {name: (check.status, check.detail) for name, check in checks.items() if check.status != "pass"}


def test_a_cluster_that_has_everything_passes_every_line(cluster: Cluster, kfp: KfpDouble) -> None:
    checks = look(kfp)

    assert bad(checks) == {}
    assert checks["rights"].detail == "all 9 rights of a launcher in namespace iar"
    assert checks["localqueues"].detail == "kueue.x-k8s.io/v1beta1, for queues"
    assert checks["queues"].detail == "platform.pool.queue is empty: jobs start at once, or wait as pods"
    assert checks["gpus"].detail == f"8 nvidia.com/gpu on 1 nodes with {SELECTED}; a job asks for 1 x 1"
    assert checks["storage"].detail == "iar-state is Bound, ReadWriteMany"
    assert checks["pipelines"].detail == f"{kfp.url} answers, several users, version 2.17.3"
    assert {asked["namespace"] for asked in cluster.reviewed} == {"iar"}


def test_without_a_run_file_all_queues_and_all_gpus_are_looked_at(cluster: Cluster, kfp: KfpDouble) -> None:
    checks = look(kfp, None)
    assert bad(checks) == {}
    assert (checks["queues"].detail, checks["gpus"].detail) == ("gpus", "8 on 1 nodes: NVIDIA-A100-SXM4-40GB")


def test_the_kind_of_job_of_the_pool_decides_what_is_asked_for(cluster: Cluster, kfp: KfpDouble) -> None:
    trainer = pool_of(job="trainjob")
    cluster.denied.add("create trainjobs")
    found = bad(look(kfp, trainer))
    assert found["trainjobs"] == (
        "fail",
        "the cluster has no trainer.kubeflow.org, needed for training on several GPUs",
    )
    assert found["rights"] == ("fail", "may not create trainjobs in namespace iar")

    del cluster.resources["kubeflow.org/v1/pytorchjobs"]
    cluster.denied.clear()
    cluster.reviewed.clear()
    for resource, namespaced in (("trainjobs", True), ("clustertrainingruntimes", False)):
        cluster.resources[f"trainer.kubeflow.org/v1alpha1/{resource}"].namespaced = namespaced
    lost = "platform.pool.runtime: there is no ClusterTrainingRuntime torch-distributed"
    assert bad(look(kfp, trainer)) == {"runtime": ("fail", lost)}
    runtime = {"metadata": {"name": "torch-distributed"}}
    cluster.objects["trainer.kubeflow.org/v1alpha1/clustertrainingruntimes", None, "torch-distributed"] = runtime
    assert bad(look(kfp, trainer)) == {}
    assert "pytorchjobs" not in {asked["resource"] for asked in cluster.reviewed}


def test_all_that_the_pool_names_is_looked_up_by_its_name(cluster: Cluster, kfp: KfpDouble) -> None:
    named = pool_of(queue="mine", state_claim="claim", priority_class="urgent", secrets={"A": "keys/a", "B": "keys/b"})
    for resource, namespaced in PLACES.items():
        cluster.resources[resource].namespaced = namespaced
    assert bad(look(kfp, named)) == {
        "queues": ("fail", "platform.pool.queue: no LocalQueue mine in namespace iar"),
        "storage": ("fail", "no volume claim claim in namespace iar; no default storage class either"),
        "priority": ("fail", "platform.pool.priority_class: there is no PriorityClass urgent"),
        "queue priority": ("fail", "platform.pool.priority_class: there is no WorkloadPriorityClass urgent"),
        "secrets": ("fail", "platform.pool.secrets: there is no Secret keys in namespace iar"),
    }
    cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "mine"] = {"metadata": {"name": "mine"}}
    cluster.objects["v1/persistentvolumeclaims", "iar", "claim"] = claim("Bound", "ReadWriteMany")
    cluster.objects["scheduling.k8s.io/v1/priorityclasses", None, "urgent"] = {"metadata": {"name": "urgent"}}
    cluster.objects["kueue.x-k8s.io/v1beta1/workloadpriorityclasses", None, "urgent"] = {"metadata": {"name": "urgent"}}
    cluster.objects["v1/secrets", "iar", "keys"] = {"metadata": {"name": "keys"}}
    assert bad(look(kfp, named)) == {}
    (asked,) = [one for one in list(cluster) if one.url.path.endswith("/secrets/keys")][-1:]
    assert "PartialObjectMetadata" in asked.headers["Accept"]  # what it holds is not read

    closed = {
        "queues": "/apis/kueue.x-k8s.io/v1beta1/namespaces/iar/localqueues/mine",
        "storage": "/api/v1/namespaces/iar/persistentvolumeclaims/claim",
        "priority": "/apis/scheduling.k8s.io/v1/priorityclasses/urgent",
        "queue priority": "/apis/kueue.x-k8s.io/v1beta1/workloadpriorityclasses/urgent",
        "secrets": "/api/v1/namespaces/iar/secrets/keys",
    }
    cluster.closed |= set(closed.values())
    refused = bad(look(kfp, named))
    assert {name: status for name, (status, _) in refused.items()} == dict.fromkeys(closed, "warn")
    assert all(refused[name][1].endswith(f"forbids GET {path} (403)") for name, path in closed.items())


def test_a_queue_without_kueue_holds_jobs_for_ever(cluster: Cluster, kfp: KfpDouble) -> None:
    del cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "gpus"]
    cluster.resources.pop("kueue.x-k8s.io/v1beta1/localqueues", None)
    found = look(kfp, pool_of(queue="gpus"))
    assert (found["localqueues"].status, found["queues"].status) == ("fail", "fail")
    assert found["queues"].detail == "platform.pool.queue: gpus needs Kueue, and jobs stay suspended without"
    assert look(kfp)["localqueues"].status == "warn"


@pytest.mark.parametrize(
    ("processes", "pool", "detail"),
    [
        (8, {"nodes": 1}, ""),
        (2, {"nodes": 2}, ""),
        (2, {"gpu": "", "node_selector": {}}, ""),
        (64, {}, f"platform.processes: 8 nvidia.com/gpu on 1 nodes with {SELECTED}; a job asks for 1 x 64"),
        (16, {"nodes": 2}, f"platform.processes: 8 nvidia.com/gpu on 1 nodes with {SELECTED}; a job asks for 2 x 8"),
        (1, {"node_selector": {"gpu": "H999"}}, "platform.pool: no node with gpu=H999 takes its pods"),
        (1, {"gpu": "a/gpu", "node_selector": {}}, "platform.processes: 0 a/gpu on 1 nodes; a job asks for 1 x 1"),
        (1, {"tolerations": []}, f"platform.pool: no node with {SELECTED} takes its pods"),
    ],
)  # fmt: skip
def test_the_nodes_of_the_pool_must_hold_a_job(
    cluster: Cluster, kfp: KfpDouble, processes: int, pool: dict[str, object], detail: str
) -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    cluster.objects["v1/nodes", None, "n1"] = GPU_NODE | {"spec": {"taints": [taint]}}
    found = look(kfp, pool_of(processes, **pool))
    assert bad(found).get("gpus", ("", "")) == (("fail", detail) if detail else ("", ""))


def test_missing_rights_are_named(cluster: Cluster, kfp: KfpDouble) -> None:
    cluster.denied |= {"delete pytorchjobs", "get pods/log"}
    found = look(kfp)["rights"]
    assert (found.status, found.detail) == ("fail", "may not delete pytorchjobs, get pods/log in namespace iar")


def test_an_operator_that_is_missing_or_too_old_fails(cluster: Cluster, kfp: KfpDouble) -> None:
    del cluster.resources["kubeflow.org/v1/pytorchjobs"]
    found = look(kfp)["pytorchjobs"]
    assert (found.status, found.detail) == (
        "fail",
        "the cluster has no kubeflow.org, needed for training on several GPUs",
    )
    cluster.resources["kubeflow.org/v1beta1/pytorchjobs"].namespaced = True
    assert look(kfp)["pytorchjobs"].detail.startswith("kubeflow.org is served as v1beta1, v1 is needed for training")
    cluster.resources["kubeflow.org/v1/tfjobs"].namespaced = True
    assert look(kfp)["pytorchjobs"].detail.startswith("kubeflow.org/v1 has no pytorchjobs")


def test_a_queue_that_admits_nothing_fails_with_its_reason(cluster: Cluster, kfp: KfpDouble) -> None:
    queue("False", "Can't submit new workloads to clusterQueue", cluster)
    found = look(kfp, pool_of(queue="gpus"))["queues"]
    assert (found.status, found.detail) == (
        "fail",
        "LocalQueue gpus admits nothing: Can't submit new workloads to clusterQueue",
    )
    del cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "gpus"]
    cluster.resources["kueue.x-k8s.io/v1beta1/localqueues"].namespaced = True
    assert look(kfp, None)["queues"].detail == "Kueue is there, and no LocalQueue in namespace iar"


def test_nodes_without_gpus_and_nodes_that_may_not_be_listed_are_warnings(cluster: Cluster, kfp: KfpDouble) -> None:
    cluster.objects["v1/nodes", None, "n1"] = GPU_NODE | {"spec": {"unschedulable": True}}
    found = look(kfp, None)["gpus"]
    assert (found.status, found.detail) == ("warn", "no GPU on 0 nodes that take pods")
    cluster.closed.add("/api/v1/nodes")
    found = look(kfp)["gpus"]
    assert found.status == "warn" and found.detail.endswith("forbids GET /api/v1/nodes (403)")


def test_the_state_volume_must_exist_and_fit_parallel_tasks(cluster: Cluster, kfp: KfpDouble) -> None:
    key = ("v1/persistentvolumeclaims", "iar", "iar-state")
    cluster.objects[key] = claim("Bound", "ReadWriteOnce")
    assert look(kfp)["storage"].detail == "iar-state is Bound, ReadWriteOnce: 4 parallel tasks must share one node"
    cluster.objects[key] = claim("Lost", "ReadWriteMany")
    assert look(kfp)["storage"].status == "fail"
    del cluster.objects[key]
    detail = "no volume claim iar-state in namespace iar; no default storage class either"
    assert (look(kfp)["storage"].status, look(kfp)["storage"].detail) == ("fail", detail)
    default = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    cluster.objects["storage.k8s.io/v1/storageclasses", None, "fast"] = default
    assert look(kfp)["storage"].detail.endswith("in namespace iar; default class fast")


def test_with_a_store_a_job_needs_no_claim_and_without_a_claim_no_task_does(cluster: Cluster, kfp: KfpDouble) -> None:
    cluster.objects["v1/persistentvolumeclaims", "iar", "iar-state"] = claim("Bound", "ReadWriteOnce")
    api = ClusterApi("iar")

    def found(store: str, **pool: object) -> tuple[str, str]:
        platform = PlatformSection.model_validate({"processes": 2, "pool": {"nodes": 2} | pool})
        check = check_storage(api, platform, store)
        assert check.status == "pass" or check.fix
        return check.status, check.detail

    shared = "iar-state is Bound, ReadWriteOnce"
    assert found("") == ("fail", f"{shared}: the 2 pods of a job must share it from as many nodes")
    assert found("s3://models/iar") == ("pass", shared)
    several = check_storage(api, PlatformSection.model_validate({}), "", qa_shards=3)
    assert several.detail == f"{shared}: 3 parallel tasks must share one node" and "qa_build.shards" in several.fix
    del cluster.objects["v1/persistentvolumeclaims", "iar", "iar-state"]
    none = "no volume claim is needed: tasks and jobs have disks of their own, and s3://models/iar"
    assert found("s3://models/iar", state_claim="") == ("pass", none)


def test_without_a_cluster_the_other_servers_are_still_looked_at(
    kfp: KfpDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    checks = look(kfp)
    assert checks["kubernetes"].detail.startswith("no access to a Kubernetes cluster: ")
    assert (checks["kubernetes"].status, checks["pipelines"].status) == ("fail", "pass")
    assert "rights" not in checks


def test_servers_of_the_run_file_that_do_not_answer_are_failures(cluster: Cluster, kfp: KfpDouble) -> None:
    nowhere = "http://127.0.0.1:9"
    judge = {"name": "a", "base_url": f"{nowhere}/v1", "model": "m", "max_attempts": 1}
    wanted = RUN_FILE.model_dump(mode="json") | {
        "register": {"tracking_uri": nowhere},
        "evaluate": {"judges": [judge, "rule:exact", "rule:token-f1"]},
    }
    found = {check.name: check for check in examine_cluster(RunFile.model_validate(wanted), "", nowhere, "")}
    assert [found[name].status for name in ("pipelines", "tracking", "mlflow", "judge 1")] == ["fail"] * 4
    assert found["mlflow"].detail == f"register.tracking_uri: {nowhere}/version does not answer (ConnectError)"


def test_teacher_judge_and_oracle_are_called_once_each_with_their_own_model_and_key(
    cluster: Cluster, kfp: KfpDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(body: dict[str, Any], number: int) -> Answer:
        if body["model"] == "unserved":
            return Answer(status=404, body='{"error": {"message": "The model `unserved` does not exist."}}')
        return Answer("ok")

    monkeypatch.setenv("TEACHER_KEY", "sk-teacher")
    with serve(script) as server:
        at = {"base_url": server.base_url, "max_attempts": 1}
        wanted = RUN_FILE.model_dump(mode="json") | {
            "qa_build": {"teacher": at | {"name": "t", "model": "large", "api_key_env": "TEACHER_KEY"}},
            "evaluate": {
                "judges": [at | {"name": "a", "model": "small"}, at | {"name": "b", "model": "unserved"}, "rule:exact"]
            },
            "oracle": {"judge": at | {"name": "o", "model": "strong"}},
        }
        found = look(kfp, RunFile.model_validate(wanted))
    roles = {"teacher": "large", "judge 1": "small", "oracle": "strong"}
    for role, model in roles.items():
        assert found[role] == Check(role, "pass", f"{model} at {server.base_url} answers")
    assert found["judge 2"].status == "fail" and "The model `unserved` does not exist." in found["judge 2"].detail
    assert "judge 3" not in found  # a rule calls nobody
    asked = dict(zip((call["model"] for call in server.calls), server.authorizations, strict=True))
    assert asked.keys() == {*roles.values(), "unserved"} and len(server.calls) == 4
    assert asked["large"] == "Bearer sk-teacher" and "sk-teacher" not in " ".join(map(str, found.values()))


def test_a_store_is_written_read_and_cleared(cluster: Cluster, kfp: KfpDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch) as server:
        written = Check("store", "pass", "s3://store/iar: written, read, deleted")
        assert look(kfp, s3="s3://store/iar")["store"] == written
        assert server.names() == []
        missing = look(kfp, s3="s3://other/iar")["store"]
        assert missing.status == "fail" and missing.detail.startswith("writing s3://other/iar/iar-doctor")
        assert "does not exist (NoSuchBucket); make the bucket" in missing.detail
        assert look(kfp, s3="/tmp")["store"].detail.startswith("/tmp: no place in S3; write it as s3://bucket/prefix,")

        asked = RUN_FILE.model_copy(update={"run": RUN_FILE.run.model_copy(update={"store": "s3://store/iar"})})
        assert written in list(examine_cluster(asked, "", kfp.url, ""))


@pytest.mark.parametrize(
    ("about", "status", "version"),
    [
        ({"multi_user": True, "apiServerTagName": "2.17.0"}, "pass", "2.17.0"),
        ({"multi_user": True, "frontendTagName": "2.15.2"}, "warn", "2.15.2"),
        ({"multi_user": True, "tag_name": "2.17.0-rc.1"}, "warn", "2.17.0rc1"),
        ({"multi_user": True, "tag_name": "unknown"}, "warn", "unknown"),
        ({"multi_user": True, "pipeline_store": "kubernetes"}, "warn", "unknown"),
    ],
)
def test_the_version_of_pipelines_is_told_and_an_old_or_unknown_one_is_a_warning(
    cluster: Cluster, kfp: KfpDouble, about: dict[str, Any], status: str, version: str
) -> None:
    kfp.about = about
    found = look(kfp)["pipelines"]
    assert (found.status, found.detail) == (status, f"{kfp.url} answers, several users, version {version}")


DIGEST = f"@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "helper", "status", "version"),
    [
        ("ghcr.io/kubeflow/kfp-api-server:2.17.1", "", "pass", "2.17.1"),
        ("registry.example:5000/kfp-api-server:2.15.0", "", "warn", "2.15.0"),
        (f"ghcr.io/kubeflow/kfp-api-server:2.17.1{DIGEST}", "", "pass", "2.17.1"),
        (f"registry.example:5000/server{DIGEST}", "ghcr.io/kubeflow/kfp-driver:2.17.0", "pass", "2.17.0"),
        (f"registry.example:5000/server{DIGEST}", f"registry.example:5000/driver{DIGEST}", "warn", ""),
        ("registry.example:5000/server:latest", "", "warn", ""),
    ],
)
def test_the_version_of_a_server_that_does_not_tell_is_that_of_its_images(
    cluster: Cluster, kfp: KfpDouble, image: str, helper: str, status: str, version: str
) -> None:
    kfp.about = {"multi_user": True, "tag_name": "unknown", "commit_sha": "unknown"}
    env = [{"name": "LOG_LEVEL", "value": "info"}, {"name": "SECRET", "valueFrom": {}}]
    container = {"name": "server", "image": image, "env": [*env, {"name": "V2_DRIVER_IMAGE", "value": helper}]}
    deployment = {"spec": {"template": {"spec": {"containers": [container]}}}}
    cluster.objects["apps/v1/deployments", "kubeflow", "ml-pipeline"] = deployment
    found = look(kfp)["pipelines"]
    told = f"{version}, as deployment ml-pipeline in namespace kubeflow says" if version else "unknown"
    assert (found.status, found.detail) == (status, f"{kfp.url} answers, several users, version {told}")


def test_a_deployment_that_may_not_be_read_leaves_the_version_unknown(cluster: Cluster, kfp: KfpDouble) -> None:
    kfp.about = {"multi_user": True}
    cluster.closed.add("/apis/apps/v1/namespaces/kubeflow/deployments/ml-pipeline")
    found = look(kfp)["pipelines"]
    assert found.status == "warn" and found.detail.endswith("version unknown")
    assert found.fix.endswith("nor is deployment ml-pipeline in namespace kubeflow to be read")


@pytest.mark.parametrize("namespace", ["", "iar"])
def test_a_server_is_asked_for_the_namespace_of_runs_where_it_has_several_users_and_for_none_where_it_has_one(
    cluster: Cluster, kfp: KfpDouble, namespace: str
) -> None:
    for several in (True, False):
        kfp.about["multi_user"] = several
        (found,) = [one for one in examine_cluster(None, namespace, kfp.url, "") if one.name == "pipelines"]
        assert (found.status, "several users" in found.detail) == ("pass" if several else "warn", several)
        assert several or found.detail.endswith(
            "one user: it runs pipelines in its own namespace, kubeflow, and not in iar"
        )


@pytest.mark.parametrize(
    ("host", "namespace", "place"),
    [
        ("https://kubeflow.example.com/pipeline", "", "kubeflow"),
        ("http://ml-pipeline.kfp.svc:8888", "", "kfp"),
        ("http://ml-pipeline.kfp.svc:8888", "kfp", ""),
    ],
)
def test_a_server_of_one_user_runs_pipelines_in_its_own_namespace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, host: str, namespace: str, place: str
) -> None:
    # Account, claim and secrets of another namespace are of no use to its tasks.
    monkeypatch.setattr(Kubeflow, "check", lambda self: Server(False, "2.17.3"))
    found = {check.name: check for check in examine_cluster(RUN_FILE, namespace, host, "")}["pipelines"]
    assert found.status == ("warn" if place else "pass")
    assert (f"in its own namespace, {place}, and not in iar" in found.detail) == bool(place)
    assert not place or found.fix.endswith(f"give --namespace {place}")


@pytest.mark.parametrize(
    ("host", "namespace"),
    [
        ("http://ml-pipeline.team-a.svc.cluster.local:8888", "team-a"),
        ("http://ml-pipeline-ui.team-a.svc", "team-a"),
        ("https://kubeflow.example.com/pipeline", "kubeflow"),
        ("http://localhost:8888", "kubeflow"),
        ("http://ml-pipeline:8888", "kubeflow"),
    ],
)
def test_a_server_is_looked_for_in_the_namespace_of_its_address(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, host: str, namespace: str
) -> None:
    monkeypatch.setattr(Kubeflow, "check", lambda self: Server(True, ""))
    container = {"name": "server", "image": "kfp-api-server:2.17.0"}
    deployment = {"spec": {"template": {"spec": {"containers": [container]}}}}
    cluster.objects["apps/v1/deployments", namespace, "ml-pipeline"] = deployment
    found = {check.name: check for check in examine_cluster(RUN_FILE, "", host, "")}["pipelines"]
    assert found.status == "pass" and found.detail.endswith(f"in namespace {namespace} says")


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        ("3.17.2", "pass", "server 3.17.2, client "),
        ("1.30.0", "warn", "server 1.30.0, client "),
        ("fine", "warn", "server of unknown version, client "),
        ("<html>log in</html>", "fail", "register.tracking_uri: "),
    ],
)
def test_the_version_of_mlflow_is_told(cluster: Cluster, kfp: KfpDouble, answer: str, status: str, detail: str) -> None:
    with served(KfpDouble()) as server:
        server.raw = ("text/html; charset=utf-8", answer.encode())
        wanted = RUN_FILE.model_dump(mode="json") | {"register": {"tracking_uri": server.url}}
        found = look(kfp, RunFile.model_validate(wanted))
    assert found["mlflow"].status == status and found["mlflow"].detail.startswith(detail)
    assert (found["tracking"].status == "fail") == answer.startswith("<")


def test_a_page_instead_of_an_api_is_told_for_each_server(
    cluster: Cluster, kfp: KfpDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kfp.raw = ("text/html", b"<html>multi_user: log in \xe9</html>")
    assert bad(look(kfp))["pipelines"][0] == "fail"
    (tmp_path / "elsewhere").write_text(yaml.safe_dump(config(kfp.url.replace("//", "//me:s3cret@"))))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "elsewhere"))
    kfp.raw = ("text/html", b"<html>log in</html>")
    found = {check.name: check for check in examine_cluster(RUN_FILE, "", kfp.url, "")}
    assert "answers GET /version with a page, probably a login" in found["kubernetes"].detail
    assert "s3cret" not in found["kubernetes"].detail


@pytest.mark.parametrize("token", [b"", b" \n", b"\xff\xfe", b"two words", b"one\ntwo"])
def test_a_token_file_without_a_token_is_one_line_and_the_rest_is_looked_at(
    cluster: Cluster, kfp: KfpDouble, tmp_path: Path, token: bytes
) -> None:
    (tmp_path / "token").write_bytes(token)
    found = look(kfp)
    (name,) = bad(found)
    assert name == "pipelines" and found[name].detail.startswith(
        f"the file {tmp_path / 'token'} (KF_PIPELINES_SA_TOKEN_PATH)"
    )
    assert found[name].detail.endswith("hence no token; write the token into it")


def test_the_command_exits_with_2_when_a_line_fails(
    cluster: Cluster, kfp: KfpDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--cluster", "--host", kfp.url]
    assert cli.call(arguments) == 0
    assert "pass  rights: all 9 rights of a launcher in namespace iar\n" in capsys.readouterr().out
    cluster.denied.add("create pytorchjobs")
    assert cli.call([*arguments, "--json"]) == 2
    assert {one["name"]: one["status"] for one in json.loads(capsys.readouterr().out)}["rights"] == "fail"
