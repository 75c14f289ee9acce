"""Whether the trainings of a run file fit into memory: this machine's, or that of the GPUs that its pool names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from iar.config import PlatformSection, RunFile, TrainingSection
from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.services.adapters import LoraSettings
from iar.services.doctor_model import model_parameters
from iar.services.hardware import compute_dtype
from iar.services.model_shapes import ModelShape, shape_of
from iar.services.train_engines import EngineName
from iar.services.trainer import engine_name
from iar.services.training_memory import ENGINES_BY_SPEED, GB, TrainingMemory, estimate

LEAST_TOKENS = 256
MOST_RANKS = 256
# Of each GPU, for the driver's context, the libraries' workspaces and memory that lies in pieces.
GPU_RESERVE_GB = 2.0
# Of the memory of a machine without GPU, for each process: Python with its libraries.
PROCESS_GB = 1.0
# What is advised keeps a tenth free: the estimate is one.
ADVISED_SHARE = 0.9
# What torch reports of a GPU as a whole, by the size it is sold with.
GPU_GB = {"40 GB": 42.3, "80 GB": 85.0, "141 GB": 150.0}
# GB of another GPU, at least, for each that its name says.
GB_AS_SOLD = 1.05
# Labels of a node as GPU feature discovery sets them, and the GPU of the table whose name says no size.
GPU_PRODUCT, GPU_MEMORY_MIB = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
NAMELESS_SIZES = {"H200": "141 GB"}
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class RowLengths:
    """Tokens of the longest row of a training, and the most that one optimizer step can have."""

    longest: int
    step: int

    @classmethod
    def of(cls, rows: Sequence[TokenRow], settings: TrainingSection) -> "RowLengths":
        """Measure the rows; padded, each counts as much as the longest."""
        lengths = sorted((len(row.token_ids) for row in rows), reverse=True)[: settings.batch_size]
        return cls(lengths[0], sum(lengths) if settings.packing else lengths[0] * len(lengths))


@dataclass(frozen=True)
class Demand:
    """What a training section of a run file asks of each of its ranks; `lengths` where its rows are known."""

    model: str
    section: str
    shape: ModelShape
    settings: TrainingSection
    engine: EngineName
    ranks: int
    adapter: LoraSettings | None = None
    lengths: RowLengths | None = None

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row, or the most that it may have."""
        return self.lengths.longest if self.lengths else self.settings.sequence_length

    @property
    def pass_tokens(self) -> int:
        """Tokens of the longest forward pass: as many rows as `micro_batch_tokens` hold, but never less than one."""
        together = self.settings.micro_batch_tokens
        return max(self.longest_row, min(together, self.lengths.step) if self.lengths else together)

    @property
    def memory(self) -> TrainingMemory:
        """The estimate."""
        return estimate(self.shape, self.settings, self.engine, self.ranks, self.adapter, self.pass_tokens)

    def with_rows_of(self, tokens: int) -> "Demand":
        """Return the demand with rows and passes of at most `tokens`."""
        fewer = {name: min(tokens, getattr(self.settings, name)) for name in ("sequence_length", "micro_batch_tokens")}
        lengths = self.lengths and replace(self.lengths, longest=min(tokens, self.lengths.longest))
        return replace(self, settings=self.settings.model_copy(update=fewer), lengths=lengths)

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """The engines for several ranks that can train this, the fastest first."""
        return ("ddp",) if self.adapter else ENGINES_BY_SPEED


@dataclass(frozen=True)
class Machine:
    """What there is for each rank, in GB; `gpus` 0 = processes without GPU. `name` "" = this machine."""

    gpus: int
    total_gb: float
    free_gb: float
    name: str = ""

    def taken_gb(self, memory: TrainingMemory) -> float:
        """Return the most that a rank takes of this memory."""
        return memory.total if self.gpus else max(memory.total, memory.merge)


def demand(run_file: RunFile, auto_dtype: str | None = None) -> Demand | None:
    """Return what inject or align takes, whichever is more; None where nothing tells the model's size.

    `auto_dtype`: what compute_dtype auto stands for; None = what this machine computes in. Of a model whose number
    of weights alone is known, activations and logits are not counted.
    """
    shape = shape_of(run_file.model)
    if shape is None:
        parameters = model_parameters(run_file)
        if not parameters:
            return None
        shape = ModelShape(int(parameters), 0, 0, 0, 0, 0, 0)
    ranks = run_file.platform.processes
    engine = engine_name(run_file.platform)
    demands = []
    for name, section in (("inject", run_file.inject), ("align", run_file.align)):
        dtype: str = section.compute_dtype
        if dtype == "auto":
            dtype = auto_dtype or str(compute_dtype()).removeprefix("torch.")
        settings = section.model_copy(update={"compute_dtype": dtype})
        demands.append(Demand(run_file.model.source, name, shape, settings, engine, ranks))
    return max(demands, key=lambda one: one.memory.total)


def this_machine(ranks: int) -> Machine:
    """Return the smallest GPU's memory where there are GPUs, one a rank, else each rank's share of the memory."""
    import torch

    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        free, total = min(torch.cuda.mem_get_info(index) for index in range(gpus))
        return Machine(gpus, total / GB - GPU_RESERVE_GB, free / GB - GPU_RESERVE_GB)
    import psutil

    memory = psutil.virtual_memory()
    total, free = (max(0.0, part / GB / ranks - PROCESS_GB) for part in (memory.total, memory.available))
    return Machine(0, total, free)


def pool_machine(platform: PlatformSection, node_selector: Mapping[str, str] | None = None) -> Machine | None:
    """Return what a cluster's pool has for each rank; None where its labels do not tell the GPU's memory.

    node_selector: the labels that count instead of the pool's.
    """
    pool = platform.pool
    if not pool.gpu:
        gb = max(0.0, pool.memory_gb_per_process * GIB / GB - PROCESS_GB)
        return Machine(0, gb, gb, "a process (platform.pool.memory_gb_per_process)")
    labels = node_selector or pool.node_selector
    product, mib = labels.get(GPU_PRODUCT, ""), labels.get(GPU_MEMORY_MIB, "")
    if mib.isdecimal():
        gb = int(mib) * MIB / GB
    # Of a part of a GPU, such as NVIDIA-A100-SXM4-40GB-MIG-3g.20gb, the last size is its own.
    elif sizes := re.findall(r"(\d+)gb", product.lower()):
        gb = GPU_GB.get(f"{sizes[-1]} GB", GB_AS_SOLD * int(sizes[-1]))
    elif size := next((size for name, size in NAMELESS_SIZES.items() if name in product), None):
        gb = GPU_GB[size]
    else:
        return None
    gb -= GPU_RESERVE_GB
    return Machine(platform.processes, gb, gb, product or f"a GPU of {mib} MiB")


def pool_refusal(run_file: RunFile) -> str:
    """Return in one line why the training fits no GPU of the pool and what would fit; "" where it does, or who knows.

    A run file for this machine has no pool.
    """
    if run_file.platform.backend != "kubeflow":
        return ""
    need, machine = demand(run_file, auto_dtype="bfloat16"), pool_machine(run_file.platform)
    if need is None or machine is None or not (said := refusal(need, machine)):
        return ""
    return f"{said}; {remedy(need, machine)}"


def check_pool(run_file: RunFile) -> None:
    """Raise UserError where the training does not fit the pool."""
    if said := pool_refusal(run_file):
        raise UserError(said)


def refusal(need: Demand, machine: Machine) -> str:
    """Return what does not fit on the machine, part by part; "" where everything does."""
    if machine.gpus and need.ranks > machine.gpus:
        return f"platform.processes: {need.ranks} training processes, one a GPU, and this machine has {machine.gpus}"
    taken_gb = machine.taken_gb(need.memory)
    if taken_gb <= machine.total_gb:
        return ""
    what = f"a LoRA adapter of {need.model}" if need.adapter else need.model
    processes = "one process" if need.ranks == 1 else f"each of {need.ranks} processes"
    return (
        f"{need.section}: training {what} with engine {need.engine} takes about {taken_gb:.1f} GB in "
        f"{processes} ({need.memory}), and there are {machine.total_gb:.1f} GB"
        + (f" on {machine.name}" if machine.name else "")
    )


def remedy(need: Demand, machine: Machine) -> str:
    """Return the smallest change of the run file with which each rank fits, else GPUs on which it would."""
    if machine.gpus and need.ranks > machine.gpus:
        return f"set platform.processes={machine.gpus}, or run it where there are {need.ranks} GPUs"
    if advice := settings_that_fit(need, machine):
        return f"set {advice}"
    found = [(size, *fewest(need, gpu_gb)) for size, gpu_gb in GPU_GB.items()]
    fitting = [place for place in found if place[2] <= MOST_RANKS]
    if not fitting:
        return "choose a smaller model"
    size, engine, ranks = fitting[0]
    where = f"{ranks} GPU{'s' if ranks > 1 else ''} of {size} with platform.training_engine={engine}"
    return f"choose a smaller model, or {where} and {need.section}.activation_checkpointing=true"


def settings_that_fit(need: Demand, machine: Machine) -> str:
    """Return the smallest change of settings with which each rank fits, as `--set` would name it; "" if none does."""
    for advice, changed in _alternatives(need):
        if machine.taken_gb(changed.memory) <= ADVISED_SHARE * machine.total_gb:
            return advice
    return ""


def fewest(need: Demand, gpu_gb: float) -> tuple[EngineName, int]:
    """Return the engine and the smallest number of GPUs on which the training fits, a power of two.

    More than MOST_RANKS stand for none that fits: ranks do not divide what an adapter leaves as it is.
    """
    lean = replace(need, settings=need.settings.model_copy(update={"activation_checkpointing": True}))
    for ranks in (2**power for power in range(MOST_RANKS.bit_length())):
        for engine in need.engines if ranks > 1 else ("single",):
            if replace(lean, engine=engine, ranks=ranks).memory.total <= ADVISED_SHARE * (gpu_gb - GPU_RESERVE_GB):
                return engine, ranks
    return "zero3", 2 * MOST_RANKS


def _alternatives(need: Demand) -> Iterator[tuple[str, Demand]]:
    """Yield what takes less memory with the same processes, the smallest change first, as `--set` would name it."""
    settings = need.settings
    kept = ""
    if not settings.activation_checkpointing:
        kept = f"{need.section}.activation_checkpointing=true"
        settings = settings.model_copy(update={"activation_checkpointing": True})
        yield kept, replace(need, settings=settings)
    for engine in need.engines if need.ranks > 1 else ():
        changed = f"platform.training_engine={engine}"
        yield f"{changed} and {kept}" if kept else changed, replace(need, settings=settings, engine=engine)
    tokens, least = settings.micro_batch_tokens, max(need.longest_row, LEAST_TOKENS)
    while tokens > least:
        tokens = max(tokens // 2, least)
        changed = f"{need.section}.micro_batch_tokens={tokens}"
        fewer = settings.model_copy(update={"micro_batch_tokens": tokens})
        yield f"{changed} and {kept}" if kept else changed, replace(need, settings=fewer)
    # A pass takes at least one row, so that from here on rows must be shorter.
    tokens = need.longest_row
    while tokens > LEAST_TOKENS:
        tokens = max(tokens // 2, LEAST_TOKENS)
        changed = f"{need.section}.sequence_length={tokens}"
        if tokens < settings.micro_batch_tokens:
            changed += f" and {need.section}.micro_batch_tokens={tokens}"
        shorter = replace(need, settings=settings).with_rows_of(tokens)
        yield f"{changed} and {kept}" if kept else changed, shorter


def memory_comment(run_file: RunFile) -> list[str]:
    """Return the lines at the head of a run file that say what its training takes of each GPU."""
    need = demand(run_file, auto_dtype="bfloat16")
    if need is None:
        return [f"The memory that {run_file.model.source} takes is known once it is here."]
    kept = replace(need, settings=need.settings.model_copy(update={"activation_checkpointing": False}))
    return [
        f"About {need.memory.total:.1f} GB of each GPU with {need.engine} on {need.ranks}, "
        f"{kept.memory.total:.1f} GB without activation checkpointing; it fits on",
        ", or ".join(places(need)) + ".",
    ]


def places(need: Demand) -> list[str]:
    """Return for each size of GPU the fewest on which the training fits, with activation checkpointing."""
    found = []
    for size, gpu_gb in GPU_GB.items():
        engine, ranks = fewest(need, gpu_gb)
        found.append(f"{ranks} x {size} ({engine})")
    return found
