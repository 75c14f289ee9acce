"""The launcher of training jobs against an emulated Kubernetes API: one job, followed to its end whatever happens."""

import asyncio
import dataclasses
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kmock
import pytest
import yaml

from iar.config import PoolSection
from iar.errors import PermanentError, TemporaryError, UserError
from iar.methods.job_spec import KINDS
from iar.services import jobs
from iar.services.launcher import run_job
from iar.services.task_settings import hand_on
from tests.services.kube import HOUR, MINUTE, NAMESPACE, PODS, World, damaging, emulator

Script = Callable[[World], None]


@pytest.fixture
def api() -> Iterator[kmock.KubernetesEmulator]:
    with emulator() as served:
        yield served


@pytest.fixture(params=["pytorchjob", "trainjob"])
def world(api: kmock.KubernetesEmulator, request: pytest.FixtureRequest) -> World:
    """A cluster with either kind of job."""
    return World(api, PoolSection(job=request.param))


@pytest.fixture
def plain(api: kmock.KubernetesEmulator) -> World:
    """A cluster for what does not depend on the kind of job."""
    return World(api)


def launch(world: World) -> None:
    run_job(world.spec, world.cluster(), world.training())


def plan(*stages: tuple[float, tuple[str, ...]], minute: float = 12 * MINUTE) -> Script:
    """Return a script: after each look time goes on, and the job has the conditions of the stage that it is in."""

    def script(world: World) -> None:
        world.clock.time += minute
        ends = itertools.accumulate(seconds for seconds, _ in stages)
        now = [conditions for end, (_, conditions) in zip(ends, stages, strict=True) if world.clock.time <= end]
        conditions = now[0] if now else stages[-1][1]
        if world.job() is not None:
            world.becomes(*conditions)
        world.result = bool({"Succeeded", "Complete"} & set(conditions))

    return script


def running(world: World) -> tuple[str, ...]:
    """Return the conditions of a job that runs; a TrainJob says so by its pods."""
    if world.pool.job == "trainjob":
        world.api.objects[world.key].patch({"status": {"jobsStatus": [{"name": "node", "active": 1, "ready": 1}]}})
        return ()
    return ("Running",)


def done(world: World) -> str:
    return "Complete" if world.pool.job == "trainjob" else "Succeeded"


def once(world: World, change: Script) -> Script:
    """Return a script that does `change` at the second look and lets the job succeed at the third."""

    def script(_: World) -> None:
        if world.looks == 2:
            change(world)
        elif world.looks > 2 and world.job() is not None:
            world.becomes(done(world))
            world.result = True

    return script


def test_a_job_is_created_and_followed_until_its_result_is_there(world: World) -> None:
    world.script = once(world, lambda world: world.becomes(*running(world)))
    launch(world)
    assert world.created() == 1 and world.prepared == 1
    assert world.job() is not None  # kept for whoever wants to look at it


@pytest.mark.parametrize("queue_hours", [0.2, 1.0])
def test_a_suspended_job_waits_and_only_waiting_counts_for_the_queue(
    api: kmock.KubernetesEmulator, queue_hours: float
) -> None:
    world = World(api, PoolSection(queue="pool", queue_hours=queue_hours, run_hours=2.5))
    stages = (20 * MINUTE, ("Created", "Suspended")), (2 * HOUR, ("Running",)), (HOUR, ("Succeeded",))
    world.script = plan(*stages, minute=5 * MINUTE)
    if queue_hours == 1.0:
        launch(world)
        assert world.clock.time > 2 * HOUR
        return
    with pytest.raises(TemporaryError, match=r"waited 0\.\d h for its pods .*Suspended.* raise platform.pool.queue"):
        launch(world)
    assert world.job() is None  # it would take the pool when nobody waits for it any more


def test_a_trainjob_whose_pods_find_no_place_is_waiting_and_not_running(api: kmock.KubernetesEmulator) -> None:
    # Its one child job is active from the start: that counts pods which are pending.
    world = World(api, PoolSection(job="trainjob", queue_hours=1, run_hours=0.5))

    def script(world: World) -> None:
        world.clock.time += 12 * MINUTE
        if world.job() is not None:
            world.api.objects[world.key].patch({"status": {"jobsStatus": [{"name": "node", "active": 1, "ready": 0}]}})

    world.script = script
    with pytest.raises(
        TemporaryError, match=r"waited 1\.\d h for its pods .* raise platform\.pool\.queue_hours from 1"
    ):
        launch(world)
    assert world.job() is None


def test_a_training_that_runs_too_long_is_ended(plain: World) -> None:
    plain.pool = PoolSection(run_hours=1)
    plain.script = plan((10 * HOUR, ("Running",)))
    with pytest.raises(UserError, match=r"ran longer than platform\.pool\.run_hours 1; raise it"):
        launch(plain)
    assert plain.job() is None


def test_a_preempted_job_waits_again_and_goes_on(plain: World) -> None:
    plain.pool = PoolSection(queue="pool", queue_hours=1, run_hours=2.5)
    running, suspended = ("Running",), ("Suspended",)
    plain.script = plan(
        (50 * MINUTE, suspended), (HOUR, running), (50 * MINUTE, suspended), (HOUR, running), (HOUR, ("Succeeded",))
    )
    launch(plain)
    assert plain.created() == 1


def test_a_restarting_job_is_not_over(plain: World) -> None:
    plain.script = plan((MINUTE, ("Running",)), (HOUR, ("Restarting",)), (HOUR, ("Running",)), (HOUR, ("Succeeded",)))
    launch(plain)


@pytest.mark.parametrize("conditions", [(), ("Suspended",), ("Running",)])
def test_a_launcher_that_starts_again_attaches(plain: World, conditions: tuple[str, ...]) -> None:
    plain.put_job(*conditions)
    plain.script = once(plain, lambda world: None)
    launch(plain)
    assert plain.created() == 0 and plain.prepared == 0


def test_a_job_that_succeeded_while_no_launcher_was_there_is_taken(world: World) -> None:
    world.put_job(done(world))
    world.result = True
    launch(world)
    assert world.created() == 0


def test_a_result_whose_job_is_gone_is_taken_and_not_made_again(plain: World) -> None:
    # A job's object stays a day, what it made stays on the volume: a run may be started again after a weekend.
    plain.result = True
    launch(plain)
    assert plain.created() == 0 and plain.prepared == 0


@pytest.mark.parametrize("conditions", ["Failed", "Succeeded"])
def test_an_older_end_without_a_result_makes_room_for_a_new_job(plain: World, conditions: str) -> None:
    plain.put_job(conditions)
    plain.script = once(plain, lambda world: None)
    launch(plain)
    assert plain.created() == 1 and plain.prepared == 1


def test_the_job_of_a_launcher_that_was_faster_is_attached_to(plain: World) -> None:
    training = plain.training()
    slow = jobs.Cluster.create

    def faster(cluster: jobs.Cluster, spec: Any) -> bool:
        plain.put_job("Running")
        return slow(cluster, spec)

    plain.script = once(plain, lambda world: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.Cluster, "create", faster)
        run_job(plain.spec, plain.cluster(), training)
    assert plain.job()["metadata"]["uid"] == "before"


def test_two_launchers_at_once_make_one_job(plain: World) -> None:
    other = World(plain.api)
    both = threading.Barrier(2)

    def script(world: World) -> None:
        if world.looks == 1:
            both.wait(30)
        world.becomes("Succeeded")
        world.result = True

    plain.script = other.script = script
    errors: list[BaseException] = []

    def second() -> None:
        try:
            launch(other)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    launch(plain)
    thread.join(30)
    assert not errors and plain.looks and other.looks
    assert len([key for key in plain.api.objects if key[2] == plain.spec.name]) == 1
    assert None not in list(plain.api.objects[plain.key].history)  # made once, deleted never


@pytest.mark.parametrize(
    "about",
    [{"labels": {}, "annotations": {}}, {"annotations": {"iar/key": "another"}}, {"labels": None, "annotations": None}],
)
def test_a_strangers_job_of_the_same_name_is_refused_and_left_alone(plain: World, about: dict[str, Any]) -> None:
    plain.put_job("Running", **about)
    with pytest.raises(UserError, match=r"a PyTorchJob of this name in namespace iar is not of this training; delete"):
        launch(plain)
    assert plain.job() is not None and plain.created() == 0


def test_a_users_error_in_the_training_is_raised_with_the_last_lines_and_not_tried_again(plain: World) -> None:
    def fails(world: World) -> None:
        world.put_pod(exit_code=1)
        world.failure = UserError("training: zero2 needs DeepSpeed")
        world.becomes("Failed")

    plain.logs(b"2026-01-01T00:00:00.1Z loading\n2026-01-01T00:00:00.12Z no DeepSpeed\n")
    plain.script = once(plain, fails)
    with pytest.raises(UserError, match=r"needs DeepSpeed; last lines of iar-\S+-master-0: loading \| no DeepSpeed$"):
        launch(plain)
    assert plain.created() == 1


@pytest.mark.parametrize("final", [True, False])
def test_a_trainjob_whose_runtime_restarts_its_pods_ends_with_an_error_that_no_restart_mends(
    api: kmock.KubernetesEmulator, final: bool
) -> None:
    # Kubeflow's own runtimes set no backoffLimit: by Kubernetes' default the pods of a job start again six times.
    world = World(api, PoolSection(job="trainjob"))

    def script(world: World) -> None:
        said = "training: rows do not fit the model"
        if world.looks == 2:
            world.failure = UserError(said) if final else TemporaryError(said)
            world.put_pod(exit_code=1)
            world.api.objects[world.key].patch({"status": {"jobsStatus": [{"name": "node", "active": 1, "ready": 0}]}})
        elif world.looks > 2:
            world.becomes("Complete")
            world.result = True

    world.script = script
    world.logs(b"2026-01-01T00:00:00.1Z no such row\n")
    if not final:  # the rank that starts again goes on from its restart point
        launch(world)
        return
    with pytest.raises(UserError, match=r"rows do not fit the model; last lines of iar-\S+: no such row$"):
        launch(world)
    assert world.created() == 1 and world.job() is None


def test_a_failure_that_nobody_explains_is_permanent(plain: World) -> None:
    def fails(world: World) -> None:
        world.put_pod(exit_code=1)
        world.becomes("Failed", reason="PyTorchJobFailed")

    plain.logs(b"")
    plain.script = once(plain, fails)
    with pytest.raises(PermanentError, match=r"failed \(PyTorchJobFailed: the job is Failed\)$"):
        launch(plain)


def test_memory_that_ran_out_names_the_setting(plain: World) -> None:
    def fails(world: World) -> None:
        world.put_pod(0, exit_code=137, why="OOMKilled")
        world.put_pod(1, exit_code=1)
        world.failure = TemporaryError("training: the processes lost each other")
        world.becomes("Failed")

    plain.script = once(plain, fails)
    with pytest.raises(UserError, match=r"raise platform\.pool\.memory_gb_per_process from 96"):
        launch(plain)


def lost(world: World) -> None:
    """End a job from outside: its node is drained."""
    world.put_pod(exit_code=143, reason="Evicted")
    world.becomes("Failed")


@pytest.mark.parametrize("end", ["evicted", "asked for a restart"])
def test_what_ended_from_outside_is_tried_again(plain: World, end: str) -> None:
    def script(world: World) -> None:
        if world.prepared == 1 and end == "evicted":
            lost(world)
        elif world.prepared == 1:
            world.put_pod(exit_code=1)
            world.failure = TemporaryError("training: told to end after step 3 of 9, state saved")
            world.becomes("Failed")
        else:
            world.becomes("Succeeded")
            world.result = True

    plain.script = script
    launch(plain)
    assert plain.created() == 2 and plain.prepared == 2


def test_tries_are_counted(plain: World) -> None:
    plain.pool = PoolSection(retries=2)
    plain.script = lost
    with pytest.raises(TemporaryError, match=r"pod iar-\S+-master-0 ended from outside \(Evicted\)"):
        launch(plain)
    assert plain.created() == 3


@pytest.mark.parametrize("conditions", [("Suspended",), ("Running",)])
def test_a_job_that_somebody_deletes_is_a_temporary_error_and_not_made_again(
    plain: World, conditions: tuple[str, ...]
) -> None:
    def script(world: World) -> None:
        if world.looks == 1:
            world.becomes(*conditions)
        else:
            world.api.objects[world.key].delete()

    plain.script = script
    with pytest.raises(TemporaryError, match=r"deleted by somebody while (waiting|running)"):
        launch(plain)
    assert plain.created() == 1


def test_a_job_without_a_result_is_never_green(plain: World) -> None:
    plain.script = lambda world: world.becomes("Succeeded")
    with pytest.raises(PermanentError, match=r"succeeded, but left no result; .* claim iar-state"):
        launch(plain)


def test_a_result_that_a_network_file_system_shows_late_counts(plain: World) -> None:
    plain.script = lambda world: world.becomes("Succeeded")
    late = dataclasses.replace(plain.training(), finished=lambda: plain.clock.time > MINUTE)
    run_job(plain.spec, plain.cluster(watch_seconds=10), late)


def test_logs_of_all_pods_are_shown_once(plain: World, capsys: pytest.CaptureFixture[str]) -> None:
    def script(world: World) -> None:
        world.put_pod(0), world.put_pod(1)
        world.becomes("Running" if world.looks < 4 else "Succeeded")
        world.result = world.looks >= 4

    plain.logs(b"2026-01-01T00:00:00.000000001Z step 1\n2026-01-01T00:00:00.000000002Z step 2\n")
    plain.script = script
    launch(plain)
    shown = [line for line in capsys.readouterr().err.splitlines() if "step" in line]
    name = plain.spec.name
    assert sorted(shown) == [f"{name}-master-{pod}: step {step}" for pod in (0, 1) for step in (1, 2)]


def faults(
    api: kmock.KubernetesEmulator, method: str, answer: Any, times: int, path: str = "", body: Any = None
) -> list[int]:
    """Let the next `times` requests of a method to a matching path be answered with `answer`; return their ids."""
    seen: list[int] = []

    def hit(request: kmock.Request) -> bool:
        matches = request.method.value == method and re.search(path, str(request.url)) is not None
        if matches and request.id not in seen and len(seen) < times:
            seen.append(request.id)
        return request.id in seen

    told = api[hit] << answer
    if body is not None:
        told << body
    return seen


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_busy_server_is_asked_again(plain: World, status: int, method: str) -> None:
    # A request to create that was answered with an error may have been carried out: the emulator does just that.
    seen = faults(plain.api, method, status, 3, "pytorchjobs")
    plain.script = once(plain, lambda world: world.becomes("Running"))
    launch(plain)
    assert seen
    assert len([key for key in plain.api.objects if key[2] == plain.spec.name]) == 1


def test_a_server_that_does_not_answer_is_asked_again(plain: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ANSWER_SECONDS", 0.2)

    async def late() -> dict[str, Any]:
        await asyncio.sleep(0.5)
        return {}

    seen = faults(plain.api, "GET", late, 2, "pytorchjobs")
    plain.script = once(plain, lambda world: None)
    launch(plain)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (lambda body: body[: len(body) // 2], 1_000),
        (lambda body: body[: len(body) // 2], 0),
        (lambda body: b"<html>log in</html>", 0),
        (lambda body: b"\xff\xfe", 0),
        (lambda body: b"[]", 0),
        (lambda body: b"{}", 0),
    ],
    ids=["cut", "shortened", "a page", "bytes", "a list", "nothing in it"],
)
def test_an_answer_that_is_damaged_is_asked_for_again(
    plain: World, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], missing: int
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "task-pod")
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
    about = {"name": "task-pod", "labels": {"pipeline/runid": "mine"}, "ownerReferences": [workflow]}
    plain.api.objects[PODS, NAMESPACE, "task-pod"] = {"metadata": about}
    plain.put_pod()
    plain.put_job("Failed")  # of another run, in the way: looked at, deleted, made anew
    plain.logs(b"2026-01-01T00:00:00.1Z a line\n")
    plain.script = plan((HOUR, ("Running",)), (HOUR, ("Succeeded",)))
    with damaging(plain.api, damage, missing) as (url, damaged):
        cluster = plain.cluster()
        cluster.core.api_client.configuration.host = url
        run_job(plain.spec, cluster, plain.training())
    (path,) = {what.removeprefix("DELETE ") for what in damaged if what.startswith("DELETE ")}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    expected = {
        f"GET {path}",
        f"DELETE {path}",
        f"POST {path.rpartition('/')[0]}",
        f"GET {pods}",
        f"GET {pods}/task-pod",
    }
    assert expected <= damaged and any(what.endswith("/log") for what in damaged)
    assert plain.job()["metadata"]["labels"]["pipeline/runid"] == "mine"


def test_patience_with_the_server_ends(plain: World) -> None:
    faults(plain.api, "GET", 503, 10_000, "pytorchjobs")
    with pytest.raises(TemporaryError, match=r"Kubernetes API: cannot read PyTorchJob iar-\S+ for 900 s: 503"):
        launch(plain)
    assert plain.clock.time > 800


@pytest.mark.parametrize(
    "answer", [500, 410, {"type": "ERROR", "object": {"kind": "Status", "code": 410}}, b"torn {", b"[]\n"]
)
def test_a_watch_that_fails_or_expires_costs_time_only(plain: World, answer: Any) -> None:
    seen = faults(plain.api, "GET", answer, 3, "watch=")
    plain.script = once(plain, lambda world: world.becomes("Running"))
    launch(plain)
    assert seen


def test_a_change_ends_the_watch_at_once(plain: World) -> None:
    cluster = plain.cluster(watch_seconds=20)
    plain.put_job("Created")
    job = cluster.get(plain.spec.name)
    assert job is not None
    patch = {"status": {"conditions": []}}
    change = threading.Timer(
        0.3, lambda: cluster.custom.patch_namespaced_custom_object(*cluster.jobs, plain.spec.name, patch)
    )
    change.start()
    started = time.monotonic()
    cluster.await_change(job)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (403, r"may not read PyTorchJob .* in namespace iar: .*give this pod's account the rights"),
        (422, r"cannot read PyTorchJob .*: 422"),
    ],
)
def test_a_lasting_refusal_is_an_error_at_once(plain: World, status: int, text: str) -> None:
    faults(plain.api, "GET", status, 1, "pytorchjobs")
    with pytest.raises((UserError, PermanentError), match=text):
        launch(plain)
    assert plain.clock.time == 0


def test_a_field_that_an_older_operator_does_not_know_is_named_and_not_dropped(api: kmock.KubernetesEmulator) -> None:
    # Trainer 2.1 and older know no runtimePatches: without them pods have no volumes, no pool and no confinement.
    world = World(api, PoolSection(job="trainjob"))
    said = (
        'TrainJob in version "v1alpha1" cannot be handled: strict decoding error: unknown field "spec.runtimePatches"'
    )
    answer = {"kind": "Status", "code": 400, "message": said}
    faults(world.api, "POST", 400, 1, body=answer)
    with pytest.raises(
        UserError, match=r'unknown field "spec\.runtimePatches"; update the operator of TrainJob, or set'
    ):
        launch(world)
    (asked,) = [request for request in list(world.api) if request.method.value == "POST"]
    assert "fieldValidation=Strict" in str(asked.url)


def test_a_cluster_without_the_operator_is_named(plain: World) -> None:
    faults(plain.api, "POST", 404, 1)
    with pytest.raises(UserError, match=r"this cluster knows no PyTorchJob; install its operator"):
        launch(plain)


@pytest.mark.parametrize("conditions", [(), ("Suspended",), ("Running",), ("Restarting",)])
def test_sigterm_ends_the_job_in_each_state(plain: World, conditions: tuple[str, ...]) -> None:
    def script(world: World) -> None:
        world.becomes(*conditions)
        if world.looks == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    plain.script = script
    with pytest.raises(TemporaryError, match=r"ended, because its launcher was told to end; run the same run again"):
        launch(plain)
    assert plain.job() is None


def test_sigterm_ends_the_job_while_the_launcher_waits_for_the_server(plain: World) -> None:
    plain.put_job("Running")
    change = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    change.start()
    started = time.monotonic()
    with pytest.raises(TemporaryError, match="told to end"):
        run_job(plain.spec, plain.cluster(watch_seconds=25), plain.training())
    assert time.monotonic() - started < 15
    assert plain.job() is None


def test_sigterm_leaves_a_strangers_job_alone(plain: World) -> None:
    def script(world: World) -> None:
        world.api.objects[world.key].patch({"metadata": {"annotations": {"iar/key": "another"}}})
        os.kill(os.getpid(), signal.SIGTERM)

    plain.script = script
    with pytest.raises(TemporaryError, match="told to end"):
        launch(plain)
    assert plain.job() is not None


def test_the_job_belongs_to_the_workflow_of_its_launcher(plain: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-x", "uid": "u", "controller": True}
    about = {"name": "launcher", "labels": {"pipeline/runid": "r"}, "ownerReferences": [owner]}
    plain.api.objects[PODS, NAMESPACE, "launcher"] = {"metadata": about}
    monkeypatch.setenv("KFP_POD_NAME", "launcher")
    plain.script = once(plain, lambda world: None)
    launch(plain)
    metadata = plain.job()["metadata"]
    assert dict(metadata)["ownerReferences"] == [{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}]
    assert metadata["labels"]["pipeline/runid"] == "r"


def test_a_job_that_another_run_left_becomes_this_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # The workflow of the other run is gone, or its job would go with it, or be taken for one that nobody needs.
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-new", "uid": "new"}
    about = {"name": "launcher", "labels": {"pipeline/runid": "new"}, "ownerReferences": [owner]}
    world.api.objects[PODS, NAMESPACE, "launcher"] = {"metadata": about}
    monkeypatch.setenv("KFP_POD_NAME", "launcher")
    labels = world.spec.manifest()["metadata"]["labels"] | {"pipeline/runid": "old"}
    world.put_job("Running", labels=labels, ownerReferences=[owner | {"name": "run-old", "uid": "old"}])
    seen: list[Any] = []

    def script(world: World) -> None:
        seen.append(dict(world.job()["metadata"]))
        world.result = True
        world.becomes(done(world))

    world.script = script
    launch(world)
    assert world.created() == 0
    assert seen[-1]["ownerReferences"] == [owner]
    assert dict(seen[-1]["labels"]) == labels | {"pipeline/runid": "new"}


def test_the_job_is_shown_as_the_file_that_the_ui_shows(
    plain: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IAR_JOB_MANIFEST", "")
    monkeypatch.setenv("IAR_TASK_SETTINGS", "{}")
    shown = tmp_path / "outputs" / "job"
    hand_on({}, str(shown))
    assert shown.read_text().startswith("# No job was launched: ")
    plain.script = once(plain, lambda world: None)
    launch(plain)
    assert yaml.safe_load(shown.read_text()) == plain.spec.manifest()


def test_outside_a_cluster_the_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match=r"trains from a pod of the cluster, and this is none .* to local to train"):
        jobs.Cluster.here(KINDS["pytorchjob"])
