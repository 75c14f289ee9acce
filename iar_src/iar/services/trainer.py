"""The training loop of Inject, Align and the baselines.

fp32 master weights and AdamW state, bf16 forward and backward, fp32 gradient accumulation, cosine schedule
with a linear warm-up, restart points that make a killed run end with the same bits. The engine says on how many
processes; the loop is the same on each of them.
"""

import contextlib
import functools
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from iar.config import PlatformSection, TrainingSection
from iar.errors import IarError, PermanentError, TemporaryError, UserError
from iar.methods.batching import TokenRow, step_batches
from iar.methods.digest import digest_json
from iar.services.adapters import LoraSettings
from iar.services.checkpoints import stored_elements, weight_files
from iar.services.distributed import World, run_processes, termination_noticed, torchrun
from iar.services.epoch_weights import keep_epoch
from iar.services.models import load_tokenizer, save_checkpoint
from iar.services.restart import RestartPoints
from iar.services.telemetry import (
    LossWatch,
    Meter,
    StepLog,
    TrainingResult,
    device_peak,
    flop_shape,
    peak_memory,
    step_note,
    summarise,
)
from iar.services.train_engines import Engine, EngineName, StepGradient, open_engine, stored_dtype
from iar.services.train_replica import ReplicaEngine
from iar.services.training_job import JobInFolder, LaunchedJob, TrainingJob, ends_in, told_by_ranks
from iar.services.workspace import STEPS

Watch = Callable[[int, int, str], None]
SHOWN_ROWS = 8
FREE = {"micro_batch_tokens", "packing", "activation_checkpointing", "checkpoint_seconds", "restart_points"}
FREE |= {"loss_spike_z", "stop_on_loss_spike", "sequence_length"}
"""Settings that a resumed training may change: they change its numbers by rounding at most, or through its rows."""
LOG_LINES = 5
FP32_BYTES = 4
# Rows, logs and caches of a node, and room for what is not counted.
SCRATCH_LEAST_GB = 8


def learning_rate(step: int, steps: int, peak: float, warmup_share: float) -> float:
    """Return the rate of optimizer step `step` (from 0) of `steps`: linear warm-up, then cosine to zero."""
    warmup = math.ceil(warmup_share * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def engine_name(platform: PlatformSection) -> EngineName:
    """Return the engine of a run file, auto resolved."""
    if platform.training_engine == "auto":
        return "single" if platform.processes == 1 else "ddp"
    return platform.training_engine


def train(
    start: Path,
    rows: Sequence[TokenRow],
    settings: TrainingSection,
    seed: int,
    out: Path,
    on_step: Watch,
    platform: PlatformSection | None = None,
    adapter: LoraSettings | None = None,
    store: str = "",
    keep_masters: bool = False,
    keep_epochs: bool = False,
) -> TrainingResult:
    """Train the model in `start` on `rows` and write `out/checkpoint` and `out/steps.jsonl`.

    With `adapter` low-rank factors are trained and merged; only the engines single and ddp know them.
    Goes on from the newest restart point under `out`, if an earlier attempt left one, and then ends with
    the same bits as an attempt that was never interrupted. SIGTERM ends it with a restart point and a TemporaryError.
    With `store`, a place such as s3://bucket/prefix/trainings/inject-0123, the points are uploaded there meanwhile, and
    the newest is taken up from there where `out` has none or an older one; a job on a cluster then shares no folder
    with this process. The checkpoint has the dtype of the model in `start`, with `keep_masters` it is the fp32 masters.
    With `keep_epochs` the weights at the end of each epoch but the last are left in `out/epochs`.
    """
    out.mkdir(parents=True, exist_ok=True)
    platform = platform or PlatformSection()
    name = engine_name(platform)
    job = TrainingJob(start, settings, seed, out, name, adapter, store, keep_masters, keep_epochs)
    check_memory(job, rows, platform)
    if platform.backend == "kubeflow":
        return _train_as_job(job, rows, platform, on_step)
    if platform.processes > 1 or name in ("zero2", "zero3"):
        return _train_in_processes(job, rows, platform.processes, on_step)
    return cast(TrainingResult, train_rank(job, rows, World(), on_step))


def check_memory(job: TrainingJob, rows: Sequence[TokenRow], platform: PlatformSection) -> None:
    """Raise UserError naming what would fit, where a rank takes more memory than there is for it.

    That of this machine, or of the GPUs that a cluster's pool names.
    """
    from iar.config import ModelSection
    from iar.services.hardware import compute_dtype
    from iar.services.model_shapes import shape_of
    from iar.services.task_settings import task_settings
    from iar.services.training_fit import Demand, RowLengths, pool_machine, refusal, remedy, this_machine

    shape = shape_of(ModelSection(source=str(job.start)))
    if platform.backend == "kubeflow":
        machine, settings = pool_machine(platform, task_settings().node_selector), job.settings
    else:
        machine = this_machine(platform.processes)
        dtype = str(compute_dtype(job.settings.compute_dtype)).removeprefix("torch.")
        settings = job.settings.model_copy(update={"compute_dtype": dtype})
    if shape is None or machine is None:
        return
    section = type(job.settings).__name__.removesuffix("Section").lower()
    lengths = RowLengths.of(rows, settings)
    need = Demand(job.start.name, section, shape, settings, job.engine, platform.processes, job.adapter, lengths)
    if said := refusal(need, machine):
        raise UserError(f"{said}; {remedy(need, machine)}")


def train_rank(
    job: TrainingJob,
    rows: Sequence[TokenRow],
    world: World,
    on_step: Watch,
    keep: Callable[[TrainingResult], None] = lambda result: None,
) -> TrainingResult | None:
    """Be one rank of a training, from the newest restart point to the checkpoint; the first rank has the result.

    That rank hands it to `keep` before the restart points go, so that a rank killed before then goes on from these.
    Raises TemporaryError on all ranks, with a restart point written, where one was told to end.
    """
    settings = job.settings
    engine = open_engine(job.engine, job.start, settings, world, job.adapter)
    batches = list(step_batches(rows, settings.batch_size, job.seed, settings.epochs))
    points = _restart_points(job, identity(job, rows), world)
    log = StepLog(job.out / STEPS)
    done = _take_up(engine, points, log)
    meter = Meter(*_meter_sizes(engine, world), sum(len(row.token_ids) for _, batch in batches[done:] for row in batch))
    watch = LossWatch(settings.loss_spike_z, (step["loss"] for step in log.read()))
    saved = time.monotonic()
    with contextlib.closing(points), termination_noticed() as noticed:
        for step, (epoch, batch) in enumerate(batches[done:], start=done):
            started = time.monotonic()
            rate = learning_rate(step, len(batches), settings.learning_rate, settings.warmup_share)
            seed_step(job.seed, step, world.rank)
            facts: dict[str, float] = {"step": step + 1, "steps": len(batches), "epoch": epoch + 1}
            facts |= {"learning_rate": rate} | make_step(engine, batch, rate, watch, settings.stop_on_loss_spike)
            facts["memory_bytes"] = int(world.max(peak_memory(world.device)))
            facts |= meter.step(batch, int(facts["positions"]), max(time.monotonic() - started, 1e-9))
            if world.first:
                log.append(facts)
                on_step(step + 1, len(batches), step_note(facts))
            if job.keep_epochs and step + 1 < len(batches) and batches[step + 1][0] != epoch:
                keep_epoch(job, engine, world, epoch + 1)  # before a restart point, which passes it over
            due = time.monotonic() - saved > settings.checkpoint_seconds
            ending, due = world.any([noticed.is_set(), due])
            if (ending or due) and step + 1 < len(batches):
                points.save(step + 1, engine.state, last=ending)
                saved = time.monotonic()
                if ending:
                    points.wait()
                    raise TemporaryError(
                        f"training: told to end after step {step + 1} of {len(batches)}, state saved in "
                        f"{points.folder}; run the same command again to continue"
                    )
    return _finish(job, engine, points, log, world, keep)


def _restart_points(job: TrainingJob, belongs_to: dict[str, Any], world: World) -> RestartPoints:
    folder, keep, store = job.out / "restart", job.settings.restart_points, None
    if job.store and world.tends(job.own_disks):
        from iar.services.restart_store import PointStore

        nodes = (world.node, world.nodes) if job.own_disks else (0, 1)
        store = PointStore(f"{job.store}/restart", keep, folder, job.out / STEPS, *nodes)
    # A disk of a pod's own goes with the pod, so there is no use in several there.
    return RestartPoints(folder, 1 if job.own_disks else keep, belongs_to, world, store, job.own_disks)


def identity(job: TrainingJob, rows: Sequence[TokenRow]) -> dict[str, Any]:
    """Return what a restart point must agree on: all that changes the numbers of a step by more than rounding."""
    from iar.services.hardware import compute_dtype

    described = [[row.id, row.prompt_length, row.token_ids] for row in rows]
    settings = {name: getattr(job.settings, name) for name in TrainingSection.model_fields if name not in FREE}
    settings["compute_dtype"] = str(compute_dtype(job.settings.compute_dtype)).removeprefix("torch.")
    return {"rows": digest_json(described), "seed": job.seed, "adapter": job.adapter and asdict(job.adapter)} | settings


def seed_step(seed: int, step: int, rank: int) -> None:
    """Draw the random numbers of a step from (seed, step, rank): a resumed step draws the same ones."""
    import torch

    torch.manual_seed(seed * 1_000_003 + step * 1_009 + rank)


def make_step(
    engine: Engine, rows: Sequence[TokenRow], rate: float, watch: LossWatch, stop_on_spike: bool = False
) -> dict[str, float]:
    """Make one optimizer step on `rows`; return its losses and gradient norm.

    Raises PermanentError on all ranks before the weights change where the loss or the norm is not finite, or, if
    asked for, where the loss is a spike.
    """
    gradient = engine.gradients(rows)
    if not gradient.finite:
        raise PermanentError(
            f"training: loss {gradient.loss} and gradient norm {gradient.norm} on rows "
            f"{_names(gradient, rows)}; lower learning_rate"
        )
    facts = {
        "loss": gradient.loss,
        "token_loss": gradient.token_nll / sum(row.target_length for row in rows),
        "gradient_norm": gradient.norm,
        "positions": gradient.positions,
    }
    if z := watch.spike(gradient.loss):
        facts["loss_spike_z"] = z
        said = f"training: loss {gradient.loss:.3f} lies {z:.1f} deviations above the steps before, on rows "
        said += _names(gradient, rows)
        if stop_on_spike:
            raise PermanentError(f"{said}; look at these rows, lower learning_rate or unset stop_on_loss_spike")
        print(said, file=sys.stderr)
    engine.update(rate)
    return facts


class Trainer(ReplicaEngine):
    """One replica whose steps are made by hand: for measurements and checks of a step."""

    def step(self, rows: Sequence[TokenRow], rate: float) -> dict[str, float]:
        """Make one optimizer step on `rows`, as `make_step` does."""
        return make_step(self, rows, rate, LossWatch(math.inf))


def _names(gradient: StepGradient, rows: Sequence[TokenRow]) -> str:
    return ", ".join((gradient.suspects or tuple(row.id for row in rows))[:SHOWN_ROWS])


def _take_up(engine: Engine, points: RestartPoints, log: StepLog) -> int:
    """Go on from the newest restart point; return the steps that are done."""
    point = points.newest()
    done = point.step if point else 0
    if point:
        engine.load_state(point)
    if points.tends:
        log.truncate(done)
    points.world.barrier()
    return done


def _meter_sizes(engine: Engine, world: World) -> tuple[Any, float | None]:
    peak = device_peak(world.device, engine.compute_dtype)
    return flop_shape(engine.model.config, engine.parameters), None if peak is None else peak * world.ranks


def _finish(
    job: TrainingJob,
    engine: Engine,
    points: RestartPoints,
    log: StepLog,
    world: World,
    keep: Callable[[TrainingResult], None],
) -> TrainingResult | None:
    """Write the checkpoint, then drop the restart points; the first rank has the result."""
    import torch

    model = engine.finished_model(torch.float32 if job.keep_masters else stored_dtype(job.start))
    result = None
    if world.first:
        digest = save_checkpoint(cast(Any, model), load_tokenizer(job.start), job.out / "checkpoint")
        result = summarise(log.read(), engine.compute_dtype, digest, job.engine, world.ranks)
        keep(result)
        points.clear()
    world.barrier()
    return result


def _train_in_processes(job: TrainingJob, rows: Sequence[TokenRow], processes: int, on_step: Watch) -> TrainingResult:
    """Run the job in local ranks; return the first rank's result or raise the error that a rank wrote down."""
    from iar.services import train_worker

    folder = job.out / "job"
    shutil.rmtree(folder, ignore_errors=True)
    place = JobInFolder(folder, job, rows)
    place.put()
    watch = functools.partial(_report, place, on_step)
    if run_processes(train_worker.__name__, place.argument, processes, folder / "log.txt", watch):
        raise rank_failure(folder)
    return place.take()


def _train_as_job(
    job: TrainingJob, rows: Sequence[TokenRow], platform: PlatformSection, on_step: Watch
) -> TrainingResult:
    """Run the job in the pods of a cluster, which see the same folder or the same store."""
    from iar.methods.job_spec import training_job
    from iar.services import train_worker
    from iar.services.job_store import JobInStore
    from iar.services.jobs import Cluster
    from iar.services.launcher import Training, run_job
    from iar.services.task_settings import task_settings

    folder = job.out.resolve() / "job"
    place: LaunchedJob = JobInStore(folder, job, rows) if job.store else JobInFolder(folder, job, rows)
    if job.store and place.finished():  # an earlier launcher was killed before it took it
        return place.take()

    def failure() -> IarError | None:
        ends = place.ends()
        told = told_by_ranks(ends, "the pod's log")
        return TemporaryError("training: the processes lost each other") if told is None and ends else told

    pool = platform.pool
    processes = platform.processes // pool.nodes
    command = torchrun(train_worker.__name__, place.argument, processes, pool.nodes, pool.grace_seconds)
    scratch = scratch_gb(job, pool.nodes) if job.store else 0
    where = job.store or str(job.out.resolve())
    spec = training_job(where, ["python", *command], platform, task_settings(), scratch)
    watch = functools.partial(_report, place, on_step)
    run_job(spec, Cluster.here(spec.kind), Training(place.put, place.finished, failure, watch))
    return place.take()


def scratch_gb(job: TrainingJob, nodes: int) -> int:
    """Return the GiB of disk that a node takes for a training whose files come from a store and go there.

    The model to start from, the finished one and, where they are kept, those of the other epochs; and of restart points
    one that was brought, one on its way to the store and one being written, each node's share of the last two. A point
    has fp32 weights and two moments.
    """
    elements, start_bytes = stored_elements(job.start), sum(path.stat().st_size for path in weight_files(job.start))
    result_bytes = FP32_BYTES * elements if job.keep_masters else start_bytes
    result_bytes += start_bytes * (job.settings.epochs - 1) * job.keep_epochs
    points_bytes = (1 + 2 / nodes) * 3 * FP32_BYTES * elements
    return SCRATCH_LEAST_GB + math.ceil((start_bytes + result_bytes + points_bytes) / 2**30)


def _report(place: LaunchedJob, on_step: Watch) -> None:
    """Report the steps that the ranks have told of since the last call."""
    for step in place.steps():
        on_step(*step)


def rank_failure(folder: Path) -> IarError:
    """Return why local ranks ended: what they wrote down, else that one was killed."""
    log = folder / "log.txt"
    if told := told_by_ranks(ends_in(folder), str(log)):
        return told
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    print("\n".join(lines[-LOG_LINES:]), file=sys.stderr)
    return TemporaryError(
        f"training: a process was killed, perhaps for memory; see {log}, then run the same command again to continue"
    )
