"""Processes that train together: joining them, agreeing on numbers, starting them on this machine with torchrun."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from iar.services.guards import RUNNER_PID, children_ended
from iar.services.hardware import usable_cores

if TYPE_CHECKING:
    import torch

POLL_SECONDS = 0.1
# A first rank on a cluster waits this long for the others; a collective waits as long for a slow rank.
TIMEOUT_MINUTES = 30


@dataclass(frozen=True)
class World:
    """Who this process is among those that train together; alone by default."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    node: int = 0
    nodes: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def tends(self, own_disks: bool) -> bool:
        """Whether this process looks after its folder: one of all ranks, or of its node's where each has a disk."""
        return self.local_rank == 0 if own_disks else self.first

    @property
    def device(self) -> "torch.device":
        """The GPU of this process, or the CPU."""
        import torch

        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, added in fp64; every rank gets the same."""
        if self.ranks == 1:
            return list(values)
        import torch

        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def max(self, value: float) -> float:
        """Return the largest value of a rank; every rank gets the same."""
        if self.ranks == 1:
            return value
        import torch

        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return float(largest)

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether any rank has set it."""
        return [count > 0 for count in self.sum([float(flag) for flag in flags])]

    def gather(self, names: Sequence[str]) -> list[str]:
        """Return the names of all ranks, in the order of ranks."""
        if self.ranks == 1:
            return list(names)
        import torch

        parts: list[list[str]] = [[] for _ in range(self.ranks)]
        torch.distributed.all_gather_object(parts, list(names))
        return [name for part in parts for name in part]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.sum([0.0])


def join() -> World:
    """Join the processes that torchrun, or a PyTorchJob, describes in the environment; alone where it does not."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ:
        return World()
    from datetime import timedelta

    import torch

    node, nodes = int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    world = World(int(os.environ["RANK"]), ranks, int(os.environ.get("LOCAL_RANK", "0")), node, nodes)
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=timedelta(minutes=TIMEOUT_MINUTES))
    return world


def leave() -> None:
    """End the membership, if there is one."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_rank(code: int) -> NoReturn:
    """End this process with `code`, without the interpreter's own end; files must be closed by now.

    A thread of gloo may still free the tensors of the last collective. One that asks for an interpreter which is
    ending aborts the process: SIGABRT, after all the work was done (seen once in some hundred ends, under load).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def termination_noticed() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, instead of ending the process; only the main thread can set that up."""
    noticed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noticed
        return

    def notice(number: int, frame: object) -> None:
        noticed.set()

    before = signal.signal(signal.SIGTERM, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGTERM, before)


def torchrun(module: str, argument: str, processes: int, nodes: int = 1, grace_seconds: int = 30) -> list[str]:
    """Return what Python is called with to run `module argument` in `processes` ranks on each of `nodes` nodes.

    On several nodes their operator tells torchrun the rest (PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT). Ranks
    that are told to end have `grace_seconds` to save.
    """
    options = [f"--nnodes={nodes}", f"--nproc-per-node={processes}", "--max-restarts=0"]
    options.append(f"--shutdown-timeout={grace_seconds}")
    return ["-m", "torch.distributed.run", *options, "-m", module, argument]


def run_processes(module: str, argument: str, processes: int, log: Path, watch: Callable[[], None]) -> int:
    """Run `python -m module argument` in `processes` local ranks to their end; return torchrun's exit code.

    `watch` is called about every tenth of a second. SIGTERM is passed on, and the ranks given time to save; whatever
    else ends this call ends the ranks, and they end by themselves where this process is killed.
    """
    python = [sys.executable, *torchrun(module, argument, processes)]
    # torchrun finds a free port by itself.
    command = [*python[:3], "--standalone", *python[3:]]
    with log.open("a", encoding="utf-8") as output, termination_noticed() as noticed, children_ended():
        runner = subprocess.Popen(command, stdout=output, stderr=output, env=_environment(processes))
        passed_on = False
        while runner.poll() is None:
            time.sleep(POLL_SECONDS)
            watch()
            if noticed.is_set() and not passed_on:
                runner.terminate()
                passed_on = True
    watch()
    return runner.returncode


def _environment(processes: int) -> dict[str, str]:
    threads = max(1, usable_cores() // processes)
    variables = {"OMP_NUM_THREADS": str(threads)} | os.environ
    if sys.platform.startswith("linux"):
        # The ranks are all here: no look-up of this machine's name, which may not resolve.
        variables = {"GLOO_SOCKET_IFNAME": "lo"} | variables
    return variables | {RUNNER_PID: str(os.getpid())}
