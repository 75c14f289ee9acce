"""A training whose pods share no folder with their launcher: all they read and leave is in an S3 server."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from iar.config import PlatformSection, PoolSection, TrainingSection
from iar.errors import PermanentError, TemporaryError, UserError
from iar.methods.digest import digest_file
from iar.records import Outcome
from iar.services import jobs, train_worker
from iar.services.distributed import torchrun
from iar.services.job_store import JobInStore
from iar.services.object_store import Bucket
from iar.services.store import Store, bring, content_ref
from iar.services.store_transfer import file_list, put_folder
from iar.services.task_settings import hand_on
from iar.services.trainer import TrainingJob, scratch_gb, train
from iar.services.training_job import told_by_ranks
from iar.services.workspace import Manifest, Workspace, stored_files
from tests.ports import free_port
from tests.services.kube import World, emulator
from tests.services.s3_server import BUCKET, PLACE, Reply, Request, S3Server, error
from tests.training_rows import ROWS

WORKER = "iar.services.train_worker"
HERE = f"{PLACE}/trainings/inject-0123"
SETTINGS = TrainingSection(
    epochs=2, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e9, compute_dtype="float32"
)
PLATFORM = PlatformSection(backend="kubeflow", processes=2, pool=PoolSection(gpu=""))


def ignore(*_: Any) -> None:
    """No progress wanted."""


@pytest.fixture
def start(tiny_model_folder: Path, tmp_path: Path, s3: S3Server) -> Path:
    """The checkpoint of a finished artifact that the state folder and the store have."""
    workspace = Workspace(tmp_path / "state")
    work = workspace.work("inject", "c" * 64)
    shutil.copytree(tiny_model_folder, work / "checkpoint")
    files = stored_files(work)
    manifest = Manifest("inject", "inject", "c" * 64, {}, "code", 0.0, 1.0, files, Outcome({}, "made"))
    workspace.publish(manifest)
    Store(PLACE, workspace).keep(manifest, ignore)
    s3.counted()
    return workspace.artifact("inject", "c" * 64) / "checkpoint"


def job_in_store(start: Path, out: Path, settings: TrainingSection = SETTINGS) -> JobInStore:
    """Return a job that its launcher has put into the store."""
    out.mkdir(parents=True, exist_ok=True)
    made = JobInStore(out / "job", TrainingJob(start, settings, 5, out, "ddp", store=HERE), ROWS)
    made.put()
    return made


class Pod:
    """One node's torchrun, with a disk of its own, as an operator starts it."""

    def __init__(self, argument: str, disk: Path, ranks: int, node: int = 0, nodes: int = 1, port: int = 0) -> None:
        command = [sys.executable, *torchrun(WORKER, argument, ranks, nodes, grace_seconds=120)]
        place = {"PET_NODE_RANK": node, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port or free_port()}
        variables = {name: str(value) for name, value in place.items()} | {"IAR_STATE": str(disk)}
        environment = os.environ | variables | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(command, env=environment)

    def end(self) -> int:
        return self.process.wait(timeout=600)

    def signal(self, number: int) -> None:
        """Send a signal: one that a process can notice to torchrun, which passes it on, SIGKILL to all there are."""
        ranks = psutil.Process(self.process.pid).children(recursive=True) if number == signal.SIGKILL else []
        self.process.send_signal(number)
        for rank in ranks:
            rank.kill()
        psutil.wait_procs(ranks, timeout=60)


def rank_here(argument: str, disk: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Be the only rank of a job, in this process; return its exit code."""
    monkeypatch.setenv("IAR_STATE", str(disk))
    monkeypatch.delenv("RANK", raising=False)
    return train_worker.main(argument)


def two_nodes(argument: str, disks: Path) -> list[Pod]:
    port = free_port()
    return [Pod(argument, disks / str(node), 1, node, 2, port) for node in range(2)]


# --- the launcher


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """An emulated cluster whose operator runs a job's pod with a disk of its own; the jobs that it ran."""
    made: list[dict[str, Any]] = []

    class Operator(jobs.Cluster):
        def await_change(self, job: dict[str, Any]) -> None:
            made.append(job)
            (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
            ended = Pod(container["command"][-1], tmp_path / "pod", 2).end()
            conditions = [{"type": "Failed" if ended else "Succeeded", "status": "True", "reason": "r", "message": "m"}]
            (key,) = (key for key in world.api.objects if key[2] == job["metadata"]["name"])
            world.api.objects[key].patch({"status": {"conditions": conditions}})

    with emulator() as api:
        world = World(api)
        like = world.cluster()
        monkeypatch.setattr(
            jobs.Cluster, "here", lambda kind: Operator(like.custom.api_client, like.namespace, kind, like.pace)
        )
        world.logs(b"")
        hand_on({"volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "iar-state"}}],
                 "volume_mounts": [{"name": "s", "mountPath": "/state"}]})  # fmt: skip
        yield made
        hand_on({})


def test_a_job_reads_and_leaves_all_it_has_in_the_store_and_mounts_no_claim(
    s3: S3Server, start: Path, tmp_path: Path, cluster: list[dict[str, Any]]
) -> None:
    told: list[int] = []
    out = tmp_path / "state" / "work" / "align-0123"
    result = train(start, ROWS, SETTINGS, 5, out, lambda step, *_: told.append(step), PLATFORM, store=HERE)
    here = train(start, ROWS, SETTINGS, 5, tmp_path / "here", ignore, PlatformSection(processes=2))
    assert result.digest == here.digest and result.ranks == 2
    assert (out / "steps.jsonl").read_text().count("\n") == result.steps
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint", "steps.jsonl"]
    assert told, "progress comes through the store"

    (job,) = cluster
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert re.fullmatch(rf"{re.escape(HERE)}/job/[0-9a-f]{{16}}@sha256:[0-9a-f]{{64}}", container["command"][-1])
    assert "persistentVolumeClaim" not in json.dumps(pod)
    size = scratch_gb(TrainingJob(start, SETTINGS, 5, out, "ddp", store=HERE), nodes=1)
    assert {"name": "state", "emptyDir": {"sizeLimit": f"{size}Gi"}} in pod["volumes"]
    assert container["resources"]["requests"]["ephemeral-storage"] == f"{size}Gi"
    assert [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/state"] == ["state"]

    (told_job,) = s3.names("team/iar/trainings/inject-0123/job/")[-1:]
    assert told_job.endswith("manifest.json")
    Store(PLACE, Workspace(tmp_path / "state")).forget_training("inject", "0123")
    assert s3.names("team/iar/trainings/") == []


def test_a_result_that_its_launcher_did_not_live_to_take_is_taken_without_another_job(
    s3: S3Server, start: Path, tmp_path: Path, cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in_store(start, tmp_path / "a")
    assert rank_here(job.argument, tmp_path / "disk", monkeypatch) == 0 and job.finished()
    result = train(start, ROWS, SETTINGS, 5, tmp_path / "b", ignore, PLATFORM, store=HERE)
    assert not cluster and (tmp_path / "b" / "checkpoint" / "model.safetensors").is_file()
    assert result.digest == digest_file(tmp_path / "b" / "checkpoint" / "model.safetensors")


def test_a_store_that_is_away_hides_progress_and_ends_no_training(
    s3: S3Server, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in_store(start, tmp_path / "out")
    s3.before = lambda request: error("InternalError", "500 Internal Server Error")
    assert list(job.steps()) == []
    assert capsys.readouterr().err.endswith("; the training goes on\n")
    s3.before = lambda request: None
    job.bucket.write("progress.json", b'[3, 9, "loss 1.2"]')
    assert list(job.steps()) == [(3, 9, "loss 1.2")]


def test_what_a_rank_says_of_its_end_reaches_the_launcher(
    s3: S3Server, start: Path, tmp_path: Path, cluster: list[dict[str, Any]]
) -> None:
    model = next(name for name in s3.names("team/iar/artifacts/") if is_model(s3, name))
    s3.client().delete_object(Bucket=BUCKET, Key=model)
    name = model.removeprefix("team/iar/artifacts/inject/")
    with pytest.raises(PermanentError) as refused:
        train(start, ROWS, SETTINGS, 5, tmp_path / "work", ignore, PLATFORM, store=HERE)
    assert str(refused.value) == f"{PLACE}/artifacts/inject/{name}: is gone, though a manifest lists it"


# --- a node


def is_model(s3: S3Server, name: str) -> bool:
    return int(s3.client().head_object(Bucket=BUCKET, Key=name)["ContentLength"]) > 50_000


def test_a_node_fetches_its_input_once_however_many_ranks_it_has(s3: S3Server, start: Path, tmp_path: Path) -> None:
    job = job_in_store(start, tmp_path / "out")
    s3.counted()
    seen: list[Request] = []
    s3.before = lambda request: seen.append(request)
    assert Pod(job.argument, tmp_path / "disk", 2).end() == 0
    fetched = Counter(request.path for request in seen if request.kind == "GetObject" and "restart" not in request.path)
    inputs = {path: count for path, count in fetched.items() if "/artifacts/" in path or "/job/" in path}
    assert len(inputs) >= 5 and set(inputs.values()) == {1}
    assert job.take().ranks == 2


@pytest.mark.parametrize("way", ["changed", "gone", "another", "malformed"])
def test_an_input_that_is_not_what_the_job_says_ends_it_in_one_line(
    s3: S3Server, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    job = job_in_store(start, tmp_path / "out")
    argument, client = job.argument, s3.client()
    uri = argument.partition("@")[0]
    listed = [name for name in s3.names("team/iar/trainings/inject-0123/job/")]
    if way == "changed":
        (rows,) = [name for name in listed if digest_of(s3, name) == digest_file(tmp_path / "out/job/rows.jsonl")]
        size = client.head_object(Bucket=BUCKET, Key=rows)["ContentLength"]
        client.put_object(Bucket=BUCKET, Key=rows, Body=b"?" * size)
        wanted = rf"{uri}/[0-9a-f]{{64}}: its bytes were changed: SHA-256 [0-9a-f]{{12}}, not [0-9a-f]{{12}}"
    elif way == "gone":
        for name in listed:
            client.delete_object(Bucket=BUCKET, Key=name)
        wanted = rf"{uri} is gone from the store: run the same run file again to rebuild it"
    elif way == "another":
        argument = f"{uri}@sha256:{'0' * 64}"
        wanted = rf"{uri}: its manifest has SHA-256 [0-9a-f]{{12}}, not 000000000000"
    else:
        argument = uri
        wanted = rf"reference '{uri}': expected s3://bucket/prefix/folder@sha256:<64 digits>"
    assert rank_here(argument, tmp_path / "disk", monkeypatch) == (2 if way in ("gone", "malformed") else 1)
    (end,) = job.ends()
    told = told_by_ranks(job.ends(), "log")
    assert re.fullmatch(wanted, end.message) and isinstance(told, UserError | PermanentError)
    assert not job.finished() and not list((tmp_path / "disk").glob("work/*/checkpoint"))


def digest_of(s3: S3Server, name: str) -> str:
    import hashlib

    return hashlib.sha256(s3.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()).hexdigest()


def test_a_job_whose_start_no_artifact_has_brings_it_along(
    s3: S3Server, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in_store(tiny_model_folder, tmp_path / "out")
    assert rank_here(job.argument, tmp_path / "disk", monkeypatch) == 0
    here = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "here", ignore)
    assert job.take().digest == here.digest


def test_a_cut_fetch_goes_on_where_it_stood_and_waits_for_its_other_fetcher(s3: S3Server, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(os.urandom(3 << 20))
    files = stored_files(source)
    ref, bucket = content_ref(PLACE, "x", file_list(files)), Bucket(PLACE)
    put_folder(bucket, ref.partition("@")[0].removeprefix(f"{PLACE}/"), source, files, file_list(files), ignore)
    cut: list[Request] = []

    def after(request: Request, body: list[bytes]) -> list[bytes]:
        cut.append(request)
        return [b"".join(body)[: 2 << 20]]

    def before(request: Request) -> Reply | None:
        return error("AccessDenied", "403 Forbidden") if cut and request.path.endswith(files[0].sha256) else None

    s3.after = lambda request, body: after(request, body) if request.path.endswith(files[0].sha256) else body
    s3.before = before
    with pytest.raises(UserError, match="AccessDenied"):
        bring(ref, tmp_path / "fetch", ignore)
    s3.after = lambda request, body: body
    (part,) = (tmp_path / "fetch").glob("*/a.part")
    assert part.stat().st_size == 2 << 20
    seen: list[Request] = []
    s3.before = lambda request: seen.append(request)
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(bring(ref, tmp_path / "fetch", ignore))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found[0] == found[1] and digest_file(found[0] / "a") == files[0].sha256
    assert len([request for request in seen if request.path.endswith(files[0].sha256)]) == 1


# --- killed and taken up


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_pod_that_ends_early_is_taken_up_on_another_disk_with_the_same_bits(
    s3: S3Server, start: Path, tmp_path: Path, number: int
) -> None:
    whole = train(start, ROWS, SETTINGS, 5, tmp_path / "whole", ignore, PlatformSection(processes=2))
    slow = SETTINGS.model_copy(update={"checkpoint_seconds": 1e-9})
    job = job_in_store(start, tmp_path / "out", slow)
    first = Pod(job.argument, tmp_path / "first", 2)
    end_after_a_point(s3, [first], number)
    told = told_by_ranks(job.ends(), "log")
    assert not job.finished() and isinstance(told, TemporaryError) == (number == signal.SIGTERM)
    shutil.rmtree(tmp_path / "first")
    job.put()
    assert Pod(job.argument, tmp_path / "second", 2).end() == 0
    result = job.take()
    assert (result.digest, result.steps, result.tokens) == (whole.digest, whole.steps, whole.tokens)


@pytest.mark.slow
def test_nodes_with_disks_of_their_own_are_taken_up_together_on_other_disks(
    s3: S3Server, start: Path, tmp_path: Path
) -> None:
    whole = train(start, ROWS, SETTINGS, 5, tmp_path / "whole", ignore, PlatformSection(processes=2))
    slow = SETTINGS.model_copy(update={"checkpoint_seconds": 1e-9})
    job = job_in_store(start, tmp_path / "out", slow)
    end_after_a_point(s3, two_nodes(job.argument, tmp_path / "first"))
    points = {name for name in s3.names("team/iar/trainings/") if "/restart/" in name and "manifest" in name}
    assert {name.rpartition("/")[2] for name in points} == {"manifest-0-of-2.json", "manifest-1-of-2.json"}
    shares = [list((tmp_path / "first" / str(node)).glob("work/*/restart/step-*/state-*")) for node in range(2)]
    assert [[path.name for path in found] for found in shares] == [
        ["state-0-of-2.safetensors"],
        ["state-1-of-2.safetensors"],
    ]
    shutil.rmtree(tmp_path / "first")
    job.put()
    assert [pod.end() for pod in two_nodes(job.argument, tmp_path / "second")] == [0, 0]
    result = job.take()
    assert (result.digest, result.steps, result.tokens) == (whole.digest, whole.steps, whole.tokens)


def end_after_a_point(s3: S3Server, pods: list[Pod], number: int = signal.SIGTERM) -> None:
    """Hold the training at its end, and send its pods a signal as soon as a restart point is in the store."""
    held = threading.Event()

    def before(request: Request) -> None:
        if "/result/" in request.path and request.method == "PUT":
            held.wait(300)

    s3.before = before
    until = time.monotonic() + 300
    while not any(re.search(r"restart/step-\d+/manifest", name) for name in s3.names("team/iar/trainings/")):
        assert time.monotonic() < until and all(pod.process.poll() is None for pod in pods)
    for pod in pods:
        pod.signal(number)
    held.set()
    s3.before = lambda request: None
    assert all(pod.end() != 0 for pod in pods)
