"""The training loop of Inject, Align and the baselines.

fp32 master weights and AdamW state, bf16 forward and backward, fp32 gradient accumulation, cosine schedule
with a linear warm-up, restart points that make a killed run end with the same bits. The engine says on how many
processes; the loop is the same on each of them.
"""

import contextlib
import functools
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from iar.config import PlatformSection, TrainingSection
from iar.errors import IarError, PermanentError, TemporaryError, UserError
from iar.methods.batching import TokenRow, step_batches
from iar.methods.digest import digest_json
from iar.records import from_json, read_records, write_json, write_records
from iar.services.adapters import LoraSettings
from iar.services.distributed import World, run_processes, termination_noticed, torchrun
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
    summarise,
)
from iar.services.train_engines import Engine, EngineName, ReplicaEngine, StepGradient, open_engine, stored_dtype
from iar.services.workspace import STEPS

Watch = Callable[[int, int, str], None]
SHOWN_ROWS = 8
FREE = {"micro_batch_tokens", "packing", "activation_checkpointing", "checkpoint_seconds", "restart_points"}
FREE |= {"loss_spike_z", "stop_on_loss_spike", "sequence_length"}
"""Settings that a resumed training may change: they change its numbers by rounding at most, or through its rows."""
LOG_LINES = 5


@dataclass(frozen=True)
class TrainingJob:
    """What to train: model folder, settings, seed, output folder, engine, and the adapter where not all weights are.

    `store` is the place in an object store that has the restart points too; "" = none. `keep_masters` writes the fp32
    masters as they are, not in the dtype of the model folder.
    """

    start: Path
    settings: TrainingSection
    seed: int
    out: Path
    engine: EngineName
    adapter: LoraSettings | None = None
    store: str = ""
    keep_masters: bool = False

    def write(self, folder: Path, rows: Sequence[TokenRow]) -> None:
        """Write the job and its rows for `read`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / "rows.jsonl", rows)
        job = {"start": str(self.start.resolve()), "out": str(self.out.resolve()), "seed": self.seed}
        settings = {name: getattr(self.settings, name) for name in TrainingSection.model_fields}
        adapter = asdict(self.adapter) if self.adapter else None
        job |= {"engine": self.engine, "store": self.store, "keep_masters": self.keep_masters}
        write_json(folder / "job.json", job | {"settings": settings, "adapter": adapter})

    @classmethod
    def read(cls, folder: Path) -> "tuple[TrainingJob, list[TokenRow]]":
        """Return the job in a folder, and its rows."""
        job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        settings = TrainingSection.model_validate(job["settings"])
        adapter = LoraSettings(**job["adapter"]) if job["adapter"] else None
        out, engine = Path(job["out"]), job["engine"]
        keep = job["keep_masters"]
        made = cls(Path(job["start"]), settings, job["seed"], out, engine, adapter, job["store"], keep)
        return made, list(read_records(folder / "rows.jsonl", TokenRow))


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
) -> TrainingResult:
    """Train the model in `start` on `rows` and write `out/checkpoint` and `out/steps.jsonl`.

    With `adapter` low-rank factors are trained and merged; only the engines single and ddp know them.
    Goes on from the newest restart point under `out`, if an earlier attempt left one, and then ends with
    the same bits as an attempt that was never interrupted. SIGTERM ends it with a restart point and a TemporaryError.
    With `store`, a place such as s3://bucket/prefix/restart/inject-0123, the points are uploaded there meanwhile, and
    the newest is taken up from there where `out` has none or an older one. The checkpoint has the dtype of the model in
    `start`, with `keep_masters` it is the fp32 masters.
    """
    out.mkdir(parents=True, exist_ok=True)
    platform = platform or PlatformSection()
    name = engine_name(platform)
    job = TrainingJob(start, settings, seed, out, name, adapter, store, keep_masters)
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


def train_rank(job: TrainingJob, rows: Sequence[TokenRow], world: World, on_step: Watch) -> TrainingResult | None:
    """Be one rank of a training, from the newest restart point to the checkpoint; the first rank has the result.

    Raises TemporaryError on all ranks, with a restart point written, where one was told to end.
    """
    settings = job.settings
    engine = open_engine(job.engine, job.start, settings, world, job.adapter)
    batches = list(step_batches(rows, settings.batch_size, job.seed, settings.epochs))
    points = _restart_points(job, identity(job, rows), world)
    log = StepLog(job.out / STEPS)
    done = _take_up(engine, points, log, world)
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
                on_step(step + 1, len(batches), _note(facts))
            due = time.monotonic() - saved > settings.checkpoint_seconds
            ending, due = world.any([noticed.is_set(), due])
            if (ending or due) and step + 1 < len(batches):
                points.save(step + 1, engine.state)
                saved = time.monotonic()
                if ending:
                    points.wait()
                    raise TemporaryError(
                        f"training: told to end after step {step + 1} of {len(batches)}, state saved in "
                        f"{points.folder}; run the same command again to continue"
                    )
    return _finish(job, engine, points, log, world)


def _restart_points(job: TrainingJob, belongs_to: dict[str, Any], world: World) -> RestartPoints:
    folder, keep, store = job.out / "restart", job.settings.restart_points, None
    if job.store and world.first:
        from iar.services.restart_store import PointStore

        store = PointStore(job.store, keep, folder, job.out / STEPS)
    return RestartPoints(folder, keep, belongs_to, world, store)


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


def _take_up(engine: Engine, points: RestartPoints, log: StepLog, world: World) -> int:
    """Go on from the newest restart point; return the steps that are done."""
    point = points.newest()
    done = point.step if point else 0
    if point:
        engine.load_state(point)
    if world.first:
        log.truncate(done)
    world.barrier()
    return done


def _meter_sizes(engine: Engine, world: World) -> tuple[Any, float | None]:
    peak = device_peak(world.device, engine.compute_dtype)
    return flop_shape(engine.model.config, engine.parameters), None if peak is None else peak * world.ranks


def _note(facts: dict[str, float]) -> str:
    spike = f", spike of {facts['loss_spike_z']:.1f} deviations" if "loss_spike_z" in facts else ""
    return f"loss {facts['loss']:.3f}, {facts['tokens_per_second']:.0f} tokens/s{spike}"


def _finish(
    job: TrainingJob, engine: Engine, points: RestartPoints, log: StepLog, world: World
) -> TrainingResult | None:
    """Write the checkpoint, then drop the restart points; the first rank has the result."""
    import torch

    model = engine.finished_model(torch.float32 if job.keep_masters else stored_dtype(job.start))
    result = None
    if world.first:
        digest = save_checkpoint(cast(Any, model), load_tokenizer(job.start), job.out / "checkpoint")
        points.clear()
        result = summarise(log.read(), engine.compute_dtype, digest, job.engine, world.ranks)
    world.barrier()
    return result


def _train_in_processes(job: TrainingJob, rows: Sequence[TokenRow], processes: int, on_step: Watch) -> TrainingResult:
    """Run the job in local ranks; return the first rank's result or raise the error that a rank wrote down."""
    from iar.services import train_worker

    folder = job.out / "job"
    shutil.rmtree(folder, ignore_errors=True)
    job.write(folder, rows)
    steps = StepLog(job.out / STEPS)
    steps.follow()
    watch = functools.partial(_report, steps, on_step)
    if run_processes(train_worker.__name__, folder, processes, folder / "log.txt", watch):
        raise rank_failure(folder)
    return _rank_result(folder)


def _train_as_job(
    job: TrainingJob, rows: Sequence[TokenRow], platform: PlatformSection, on_step: Watch
) -> TrainingResult:
    """Run the job in the pods of a cluster, which see the same folders; otherwise as `_train_in_processes`."""
    from iar.methods.job_spec import training_job
    from iar.services import train_worker
    from iar.services.jobs import Cluster
    from iar.services.launcher import Training, run_job
    from iar.services.task_settings import task_settings

    folder = job.out.resolve() / "job"
    steps = StepLog(job.out / STEPS)

    def prepare() -> None:
        for pattern in (train_worker.RESULT, train_worker.ERRORS):
            for stale in folder.glob(pattern):
                stale.unlink()
        job.write(folder, rows)
        steps.follow()

    def failure() -> IarError | None:
        told = told_by_ranks(folder, "the pod's log")
        if told is None and any(folder.glob(train_worker.ERRORS)):
            return TemporaryError("training: the processes lost each other")
        return told

    pool = platform.pool
    command = torchrun(train_worker.__name__, folder, platform.processes // pool.nodes, pool.nodes, pool.grace_seconds)
    spec = training_job(str(job.out.resolve()), ["python", *command], platform, task_settings())
    finished = (folder / train_worker.RESULT).is_file
    training = Training(prepare, finished, failure, functools.partial(_report, steps, on_step))
    run_job(spec, Cluster.here(spec.kind), training)
    return _rank_result(folder)


def _report(steps: StepLog, on_step: Watch) -> None:
    """Report the steps that the ranks have written since the last call."""
    for facts in steps.new():
        on_step(int(facts["step"]), int(facts["steps"]), _note(facts))


def _rank_result(folder: Path) -> TrainingResult:
    """Return what the first rank wrote, and drop the job's folder."""
    from iar.services import train_worker

    result = from_json(TrainingResult, json.loads((folder / train_worker.RESULT).read_text(encoding="utf-8")))
    shutil.rmtree(folder)
    return result


def told_by_ranks(folder: Path, log: str) -> IarError | None:
    """Return what a rank wrote down about its end, the most telling first; None where none ended by itself."""
    from iar.services import train_worker

    told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(train_worker.ERRORS))]
    for kind in (PermanentError, UserError, TemporaryError):
        for error in told:
            if error["kind"] == kind.__name__:
                return kind(error["message"])
    for error in told:
        if error["kind"] != train_worker.LOST:
            return PermanentError(f"training: rank {error['rank']}: {error['message']}; the traceback is in {log}")
    return None


def rank_failure(folder: Path) -> IarError:
    """Return why local ranks ended: what they wrote down, else that one was killed."""
    log = folder / "log.txt"
    if told := told_by_ranks(folder, str(log)):
        return told
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    print("\n".join(lines[-LOG_LINES:]), file=sys.stderr)
    return TemporaryError(
        f"training: a process was killed, perhaps for memory; see {log}, then run the same command again to continue"
    )
