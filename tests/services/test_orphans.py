"""Jobs that a run left behind, on kmock's Kubernetes emulator: told by their run's workflow, deleted when asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from iar import cli
from iar.config import PlatformSection, PoolSection
from iar.methods.job_spec import TaskSettings, training_job
from iar.services.cluster_api import ClusterApi as Api
from iar.services.doctor_cluster import examine_cluster, reap
from iar.services.orphans import check_orphans
from tests.services.cluster_emulator import Cluster, emulated

JOBS = {"pytorchjob": "kubeflow.org/v1/pytorchjobs", "trainjob": "trainer.kubeflow.org/v1alpha1/trainjobs"}
WORKFLOWS = "argoproj.io/v1alpha1/workflows"
FIX = "iar doctor --cluster --reap removes it"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with emulated(tmp_path / "kubeconfig") as made:
        for resource in (*JOBS.values(), WORKFLOWS):
            made.resources[resource].namespaced = True
        yield made


def put_job(
    cluster: Cluster, name: str, run: str, kind: str = "pytorchjob", state: str = "Running", **labels: str
) -> None:
    platform = PlatformSection(backend="kubeflow", pool=PoolSection.model_validate({"job": kind}))
    job = training_job(f"/state/work/{name}", ["python"], platform, TaskSettings()).manifest()
    job["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    job["metadata"]["labels"] |= ({"pipeline/runid": run} if run else {}) | labels
    job["status"] = {"conditions": [{"type": state, "status": "True"}]}
    cluster.objects[JOBS[kind], "iar", name] = job


def put_workflow(cluster: Cluster, run: str, phase: str) -> None:
    about = {"name": f"workflow-{run}", "labels": {"pipeline/runid": run}}
    cluster.objects[WORKFLOWS, "iar", f"workflow-{run}"] = {
        "metadata": about,
        "status": {"phase": phase} if phase else {},
    }


def left(cluster: Cluster) -> set[str]:
    return {
        name for (_, _, name), one in cluster.objects.items() if not name.startswith("workflow") and not one.deleted
    }


def test_jobs_of_runs_that_are_gone_or_have_ended_are_listed_and_stay(cluster: Cluster) -> None:
    put_job(cluster, "a", "gone")
    put_job(cluster, "b", "failed", kind="trainjob", state="Suspended")
    put_job(cluster, "c", "going")
    put_workflow(cluster, "failed", "Failed")
    put_workflow(cluster, "going", "Running")

    found = [check for check in examine_cluster(None, "", "http://127.0.0.1:9", "") if check.name == "orphans"]

    assert [(check.status, check.detail, check.fix) for check in found] == [
        ("warn", "PyTorchJob a (running): its run gone is gone", FIX),
        ("warn", "TrainJob b (waiting): its run failed has ended (Failed)", FIX),
    ]
    assert left(cluster) == {"a", "b", "c"}


def test_reaping_deletes_them_and_nothing_else(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    put_job(cluster, "orphan", "gone")
    put_job(cluster, "pending", "begins")
    put_workflow(cluster, "begins", "")  # a workflow that its controller has not seen yet
    put_job(cluster, "by-hand", "")  # of no run
    put_job(cluster, "strangers", "gone", **{"app.kubernetes.io/managed-by": "kueue"})
    cluster.objects[JOBS["pytorchjob"], "other", "elsewhere"] = {"metadata": {"name": "elsewhere"}}

    assert cli.call(["doctor", "--cluster", "--reap"]) == 0

    assert capsys.readouterr().out.splitlines()[1:] == [
        "pass  orphans: PyTorchJob orphan (running): its run gone is gone: deleted"
    ]
    assert left(cluster) == {"pending", "by-hand", "strangers", "elsewhere"}
    assert [check.detail for check in reap("")][1:] == ["no job without its run in namespace iar"]
    (asked,) = [json.loads(one.body) for one in list(cluster) if one.method.value == "DELETE"]
    # A job that was made anew, or taken up by another run, since it was looked at is another one.
    assert asked["preconditions"]["uid"] == "uid-orphan" and asked["propagationPolicy"] == "Foreground"


@pytest.mark.parametrize(
    ("kind", "state"), [("pytorchjob", "Succeeded"), ("pytorchjob", "Failed"), ("trainjob", "Complete")]
)
def test_a_job_that_has_ended_holds_no_gpus_and_stays_for_whoever_looks(
    cluster: Cluster, kind: str, state: str
) -> None:
    # Every run leaves some for a day; without one, a task that is started again would train anew.
    put_job(cluster, "done", "ended", kind=kind, state=state)
    put_workflow(cluster, "ended", "Failed")
    assert [check.status for check in check_orphans(Api("iar"), reap=True)] == ["pass"]
    assert left(cluster) == {"done"}


def test_where_workflows_cannot_be_seen_nothing_is_an_orphan(cluster: Cluster) -> None:
    put_job(cluster, "a", "gone")
    del cluster.resources[WORKFLOWS]
    (found,) = check_orphans(Api("iar"), reap=True)
    assert found.status == "fail" and found.detail.startswith("the cluster has no Argo workflows")
    cluster.resources[WORKFLOWS].namespaced = True
    cluster.closed.add("/apis/argoproj.io/v1alpha1/namespaces/iar/workflows")
    (found,) = check_orphans(Api("iar"), reap=False)
    assert found.status == "warn" and "forbids GET" in found.detail
    assert left(cluster) == {"a"}


def test_a_job_that_cannot_be_deleted_fails_and_the_others_go(cluster: Cluster) -> None:
    put_job(cluster, "a", "gone")
    put_job(cluster, "b", "gone")
    cluster.kept.add("/apis/kubeflow.org/v1/namespaces/iar/pytorchjobs/a")
    found = list(check_orphans(Api("iar"), reap=True))
    assert [check.status for check in found] == ["fail", "pass"] and "(403)" in found[0].detail
    assert left(cluster) == {"a"}


def test_reap_needs_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["doctor", "--reap"]) == 2
    assert capsys.readouterr().err == "error: --reap deletes jobs on a cluster; give --cluster with it\n"
