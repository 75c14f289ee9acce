"""The preflight of a cluster, against kmock's Kubernetes emulator, a KFP double and an S3 server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.config import RunFile
from iar.services.doctor_cluster import examine_cluster
from iar.services.findings import Check
from tests.services.cluster_emulator import Cluster, emulated
from tests.services.kfp_double import KfpDouble, served
from tests.services.s3_server import s3_server

RUN_FILE = RunFile.model_validate(
    {"run": {"name": "x"}, "documents": {"path": "x"}, "platform": {"backend": "kubeflow", "candidate_shards": 4}}
)
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
        yield double


def queue(status: str, message: str, cluster: Cluster) -> None:
    conditions = [{"type": "Active", "status": status, "message": message}]
    value = {"metadata": {"name": "gpus"}, "status": {"conditions": conditions}}
    cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "gpus"] = value


def claim(phase: str, mode: str) -> dict[str, Any]:
    return {"metadata": {"name": "iar-state"}, "spec": {"accessModes": [mode]}, "status": {"phase": phase}}


def look(kfp: KfpDouble, **servers: str) -> dict[str, Check]:
    return {check.name: check for check in examine_cluster(RUN_FILE, "", kfp.url, servers.get("s3", ""))}


def test_a_cluster_that_has_everything_passes_every_line(cluster: Cluster, kfp: KfpDouble) -> None:
    checks = look(kfp)

    assert {name: check.detail for name, check in checks.items() if check.status != "pass"} == {}
    assert checks["rights"].detail == "all 9 rights of a launcher in namespace iar"
    assert checks["localqueues"].detail == "kueue.x-k8s.io/v1beta1, for queues"
    assert (checks["queues"].detail, checks["gpus"].detail) == ("gpus", "8 on 1 nodes: NVIDIA-A100-SXM4-40GB")
    assert checks["storage"].detail == "iar-state is Bound, ReadWriteMany"
    assert checks["pipelines"].detail == f"{kfp.url} answers, one user"
    assert {asked["namespace"] for asked in cluster.reviewed} == {"iar"}


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
    found = look(kfp)["queues"]
    assert (found.status, found.detail) == (
        "fail",
        "LocalQueue gpus admits nothing: Can't submit new workloads to clusterQueue",
    )
    del cluster.objects["kueue.x-k8s.io/v1beta1/localqueues", "iar", "gpus"]
    cluster.resources["kueue.x-k8s.io/v1beta1/localqueues"].namespaced = True
    assert look(kfp)["queues"].detail == "Kueue is there, and no LocalQueue in namespace iar"


def test_nodes_without_gpus_and_nodes_that_may_not_be_listed_are_warnings(cluster: Cluster, kfp: KfpDouble) -> None:
    cluster.objects["v1/nodes", None, "n1"] = GPU_NODE | {"spec": {"unschedulable": True}}
    assert (look(kfp)["gpus"].status, look(kfp)["gpus"].detail) == ("warn", "no GPU on 0 nodes that take pods")
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


def test_the_command_exits_with_2_when_a_line_fails(
    cluster: Cluster, kfp: KfpDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--cluster", "--host", kfp.url]
    assert cli.call(arguments) == 0
    assert "pass  rights: all 9 rights of a launcher in namespace iar\n" in capsys.readouterr().out
    cluster.denied.add("create pytorchjobs")
    assert cli.call([*arguments, "--json"]) == 2
    assert {one["name"]: one["status"] for one in json.loads(capsys.readouterr().out)}["rights"] == "fail"
