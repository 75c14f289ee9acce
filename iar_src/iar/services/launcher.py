"""The launcher of a training job: makes it once, follows it to its end, ends it when it is told to end itself.

All it knows of the job it reads from the cluster and from the job's folder, so that a launcher that starts again goes
on where another left off. A training that cannot go on is done or an error, never anything else.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from iar.errors import IarError, PermanentError, TemporaryError, UserError
from iar.methods.job_spec import JobSpec, Manifest, State, reason_of, state_of
from iar.services.guards import sigterm_as_interrupt
from iar.services.job_logs import Logs, end_of
from iar.services.jobs import Cluster, Pace
from iar.services.task_settings import show_manifest

T = TypeVar("T")
# A pod that is told to end is killed 30 s later: what is still to do then must be done.
LAST_SECONDS = 20.0
# What a pod has written to a network file system shows here so much later, where names are cached.
VISIBLE_SECONDS = 120.0
HOUR = 3600.0


@dataclass(frozen=True)
class Training:
    """What the launcher asks of the training whose job it runs.

    prepare: write what the ranks read; finished: whether the result is there; failure: what the ranks say of their
    end, None = nothing; watch: called at each look.
    """

    prepare: Callable[[], None]
    finished: Callable[[], bool]
    failure: Callable[[], IarError | None]
    watch: Callable[[], None]


def run_job(spec: JobSpec, cluster: Cluster, training: Training) -> None:
    """Run a training as a job; return when it has succeeded and its result is there.

    Raises what the ranks say, TemporaryError where another try may help, and UserError where a limit of platform.pool
    was reached or somebody else's job has the name. SIGTERM and Ctrl-C delete the job and raise TemporaryError.
    """
    show_manifest(spec.manifest())
    with sigterm_as_interrupt():
        try:
            _attempts(spec, cluster, training)
        except KeyboardInterrupt:
            _cancel(spec, cluster)
            raise TemporaryError(
                f"training job {spec.name}: ended, because its launcher was told to end; run the same run again to "
                "go on from its last restart point"
            ) from None


def _attempts(spec: JobSpec, cluster: Cluster, training: Training) -> None:
    limits = Limits(spec, cluster.pace)
    for left in reversed(range(spec.pool.retries + 1)):
        job = _started(spec, cluster, training)
        if job is None:
            return
        end = _followed(job, spec, cluster, training, limits)
        if end is None:
            return
        if not (isinstance(end, TemporaryError) and left):
            raise end
        print(f"{end}; trying again, {left} tries left", file=sys.stderr)
        _remove(job, cluster, spec.pool.grace_seconds)


def _started(spec: JobSpec, cluster: Cluster, training: Training) -> Manifest | None:
    """Return the job of this training: the one that is there, else a new one; None where one that is gone was done."""
    while True:
        job = cluster.get(spec.name)
        if job is None and training.finished():
            print(f"training job {spec.name}: its result is there", file=sys.stderr)
            return None
        if job is None:
            training.prepare()
            made = cluster.create(spec)
            print(f"training job {spec.name}: {'created' if made else 'created by another launcher'}", file=sys.stderr)
            continue  # what a launcher that was faster made is looked at like any other
        if not spec.owns(job):
            raise UserError(
                f"training job {spec.name}: a {spec.kind.kind} of this name in namespace {cluster.namespace} is not of "
                "this training; delete or rename it"
            )
        state = state_of(job)
        if not _is_going(job) and (state in ("waiting", "running") or (state == "succeeded" and training.finished())):
            print(f"training job {spec.name}: {state} ({reason_of(job)})", file=sys.stderr)
            cluster.adopt(job)
            return job
        _remove(job, cluster, spec.pool.grace_seconds)


def _followed(job: Manifest, spec: JobSpec, cluster: Cluster, training: Training, limits: "Limits") -> IarError | None:
    """Follow a job to its end; return None for success, else why it failed."""
    logs = Logs(cluster, spec.name)
    uid = job["metadata"].get("uid")
    while True:
        state = state_of(job)
        training.watch()
        if state != "waiting":
            logs.show_new()
        if state == "succeeded":
            return None if _seen(training.finished, cluster.pace) else _without_result(spec)
        if state == "failed":
            return _why(job, spec, logs, _seen(training.failure, cluster.pace))
        if said := _without_hope(spec, training):
            logs.show_new()
            cluster.delete(job)
            return type(said)(f"{said}{logs.ending()}")
        if over := limits.over(state, job, logs):
            cluster.delete(job)
            raise over
        cluster.await_change(job)
        now = cluster.get(spec.name)
        if now is None or _is_going(now) or now["metadata"].get("uid") != uid:
            raise TemporaryError(
                f"training job {spec.name}: deleted by somebody while {state}{logs.ending()}; run the same run again "
                "to go on from its last restart point"
            )
        job = now


def _without_hope(spec: JobSpec, training: Training) -> IarError | None:
    """Return what the ranks of a TrainJob said if it is no use to start them again; None for a PyTorchJob, which fails.

    The pods of a TrainJob start again as often as its runtime says, by the runtimes of Kubeflow six times.
    """
    if spec.pool.job != "trainjob":
        return None
    with contextlib.suppress(TemporaryError):  # a store that is away is asked again at the next look
        said = training.failure()
        return None if isinstance(said, TemporaryError) else said
    return None


def _seen(look: Callable[[], T], pace: Pace) -> T:
    """Return the first answer that is not false, or the last one."""
    until = pace.now() + VISIBLE_SECONDS
    while not (found := look()) and pace.now() < until:
        pace.sleep(pace.watch_seconds)
    return found


def _why(job: Manifest, spec: JobSpec, logs: Logs, said: IarError | None) -> IarError:
    """Return why a job failed, by what its ranks said, then by how its pods ended."""
    ends = [end_of(pod) for pod in logs.pods]
    if said is not None and not isinstance(said, TemporaryError):
        return type(said)(f"{said}{logs.ending()}")
    name = f"training job {spec.name}"
    if any(end.reason == "OOMKilled" for end in ends):
        return UserError(
            f"{name}: a pod took more than its memory; raise platform.pool.memory_gb_per_process from "
            f"{spec.pool.memory_gb_per_process:g}{logs.ending()}"
        )
    if "deadline" in reason_of(job).lower():
        return _too_long(spec)
    outside = [end for end in ends if end.from_outside]
    if said is not None or outside:
        what = said or f"{name}: pod {outside[0].pod} ended from outside ({outside[0].reason or outside[0].code})"
        return TemporaryError(f"{what}{logs.ending()}")
    return PermanentError(f"{name}: failed ({reason_of(job)}){logs.ending()}")


@dataclass
class Limits:
    """The time that a training may wait for the pool and run, over all its jobs."""

    spec: JobSpec
    pace: Pace
    waited: float = 0.0
    ran: float = 0.0
    last: tuple[State, float] | None = None

    def over(self, state: State, job: Manifest, logs: Logs) -> IarError | None:
        """Count the time since the last call to the state that it began with; return an error for one too long."""
        now = self.pace.now()
        before, since = self.last or (state, now)
        self.last = (state, now)
        if before == "running":
            self.ran += now - since
        else:
            self.waited += now - since
        if state == "running":  # however late, it has its pods
            self.waited = 0.0
        if self.ran > self.spec.pool.run_hours * HOUR:
            return _too_long(self.spec)
        if self.waited > self.spec.pool.queue_hours * HOUR:
            return TemporaryError(
                f"training job {self.spec.name}: waited {self.waited / HOUR:.1f} h for its pods "
                f"({logs.hindrance() or reason_of(job)}); look at the queue and the pool's nodes, or raise "
                f"platform.pool.queue_hours from {self.spec.pool.queue_hours:g}"
            )
        return None


def _remove(job: Manifest, cluster: Cluster, grace_seconds: int) -> None:
    """Delete a job and wait until its pods are gone, which may take their time to write a restart point."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid")
    until = cluster.pace.now() + grace_seconds + cluster.pace.patience_seconds
    if not _is_going(job):
        cluster.delete(job)
    while (left := cluster.get(name)) is not None and left["metadata"].get("uid") == uid:
        if cluster.pace.now() > until:
            raise TemporaryError(
                f"training job {name}: still not gone, though deleted; see its finalizers and pods, then run again"
            )
        cluster.await_change(left)


def _cancel(spec: JobSpec, cluster: Cluster) -> None:
    """Delete the job, if there is one, in the little time that is left."""
    cluster.pace = dataclasses.replace(cluster.pace, patience_seconds=LAST_SECONDS)
    job = cluster.get(spec.name)
    if job is not None and spec.owns(job):
        cluster.delete(job)


def _is_going(job: Manifest) -> bool:
    return bool(job["metadata"].get("deletionTimestamp"))


def _too_long(spec: JobSpec) -> IarError:
    return UserError(
        f"training job {spec.name}: ran longer than platform.pool.run_hours {spec.pool.run_hours:g}; raise it, then "
        "run again: it goes on from its last restart point"
    )


def _without_result(spec: JobSpec) -> IarError:
    shared = f"mount the same volume, claim {spec.pool.state_claim}"
    where = "reach the same store, run.store" if spec.scratch_gb else shared
    return PermanentError(
        f"training job {spec.name}: succeeded, but left no result; its pods and this task must {where}"
    )
