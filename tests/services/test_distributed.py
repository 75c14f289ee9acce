"""Ranks that were started here or by a PyTorchJob: what they are told, how they end, what the waiting process says."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from iar.config import PlatformSection, TrainingSection
from iar.errors import ExitCode, PermanentError, TemporaryError
from iar.services import train_worker, training_job
from iar.services.distributed import World, join, run_processes, termination_noticed
from iar.services.trainer import TrainingJob, rank_failure, train
from tests.ports import free_port
from tests.services import uneven_rank
from tests.training_rows import ROWS

SETTINGS = TrainingSection(epochs=2, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e-9)


def ignore(step: int, steps: int, note: str) -> None:
    """No progress wanted."""


def start_rank(job: Path, rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    """Start the worker as a pod of a PyTorchJob would: who it is stands in the environment."""
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": 0}
    environment = os.environ | {name: str(value) for name, value in variables.items()} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", train_worker.__name__, str(job)]
    return subprocess.Popen(command, env=environment)


def test_a_process_alone_is_its_own_world() -> None:
    world = World()
    assert world.first
    assert world.sum([1.5, 2.0]) == [1.5, 2.0] and world.any([True, False]) == [True, False]
    assert world.gather(["a"]) == ["a"]
    world.barrier()


def test_without_torchruns_variables_a_process_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert join() == World()


@pytest.mark.parametrize("code", [0, 4])
def test_a_rank_ends_with_its_code_and_its_words_but_without_the_interpreters_own_end(code: int) -> None:
    """In that end a thread of gloo that frees a tensor aborts the process, after all the work was done."""
    program = (
        "import atexit, os, sys\n"
        "from iar.services.distributed import end_rank\n"
        "atexit.register(os.abort)\n"
        "sys.stdout.write('out'); sys.stderr.write('error')\n"
        f"end_rank({code})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "out", "error")


def test_a_rank_of_a_training_ends_that_way(tmp_path: Path) -> None:
    worker = train_worker.__name__
    program = (
        "import atexit, os, runpy, sys\n"
        "atexit.register(os.abort)\n"
        f"sys.argv = ['', {str(tmp_path / 'no job')!r}]\n"
        f"runpy.run_module({worker!r}, run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == ExitCode.BUG and "FileNotFoundError" in ended.stderr


def test_sigterm_is_noticed_for_a_while_and_then_ends_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with termination_noticed() as noticed:
        assert not noticed.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert noticed.wait(10)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_signals_alone() -> None:
    seen: list[bool] = []

    def work() -> None:
        with termination_noticed() as noticed:
            seen.append(noticed.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.slow
def test_pods_of_a_pytorchjob_train_what_torchrun_trains(tiny_model_folder: Path, tmp_path: Path) -> None:
    here = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "here", ignore, PlatformSection(processes=2))
    (tmp_path / "pods").mkdir()
    TrainingJob(tiny_model_folder, SETTINGS, 5, tmp_path / "pods", "ddp").write(tmp_path / "job", ROWS)
    port = free_port()
    ranks = [start_rank(tmp_path / "job", rank, 2, port) for rank in range(2)]
    for rank in ranks:
        assert rank.wait(timeout=600) == 0
    result = json.loads((tmp_path / "job" / training_job.RESULT).read_text())
    assert result["digest"] == here.digest and result["ranks"] == 2


def test_the_memory_that_is_told_is_that_of_the_rank_with_the_most(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    (tmp_path / "out").mkdir()
    TrainingJob(tiny_model_folder, SETTINGS, 5, tmp_path / "out", "ddp").write(tmp_path / "job", ROWS)
    log = tmp_path / "log.txt"
    assert run_processes(uneven_rank.__name__, str(tmp_path / "job"), 2, log, lambda: None) == 0, log.read_text()[
        -3000:
    ]
    peaks = json.loads((tmp_path / "job" / "peaks.json").read_text())
    assert peaks["told"] > peaks["own"] + uneven_rank.BALLAST / 2


def test_a_pod_that_is_told_to_end_asks_for_a_restart(tiny_model_folder: Path, tmp_path: Path) -> None:
    long = SETTINGS.model_copy(update={"epochs": 10_000})
    (tmp_path / "out").mkdir()
    TrainingJob(tiny_model_folder, long, 5, tmp_path / "out", "single").write(tmp_path / "job", ROWS)
    rank = start_rank(tmp_path / "job", 0, 1, free_port())
    steps = tmp_path / "out" / "steps.jsonl"
    while not (steps.exists() and steps.read_text()):
        assert rank.poll() is None
    rank.send_signal(signal.SIGTERM)
    assert rank.wait(timeout=600) == 4
    assert any((tmp_path / "out" / "restart").glob("step-*/complete.json"))


def test_a_rank_that_is_killed_is_a_temporary_error(tiny_model_folder: Path, tmp_path: Path) -> None:
    import psutil

    def kill_one(step: int, steps: int, note: str) -> None:
        ranks = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.status() != psutil.STATUS_ZOMBIE
            and train_worker.__name__ in child.cmdline()
            and "torch.distributed.run" not in child.cmdline()
        ]
        for rank in ranks[-1:]:
            rank.kill()

    long = SETTINGS.model_copy(update={"epochs": 10_000})
    with pytest.raises(TemporaryError, match=r"a process was killed, perhaps for memory; see .*log\.txt.* to continue"):
        train(tiny_model_folder, ROWS, long, 5, tmp_path, kill_one, PlatformSection(processes=2))


def test_what_a_rank_says_of_itself_goes_before_what_its_peers_saw(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("a line\n")
    lost = {"rank": 0, "kind": training_job.LOST, "message": "Connection closed by peer"}
    (tmp_path / "error-0.json").write_text(json.dumps(lost))
    assert isinstance(rank_failure(tmp_path), TemporaryError)
    bug = {"rank": 1, "kind": "bug", "message": "unexpected ValueError: no"}
    (tmp_path / "error-1.json").write_text(json.dumps(bug))
    error = rank_failure(tmp_path)
    assert isinstance(error, PermanentError) and "rank 1: unexpected ValueError: no; the traceback is in" in str(error)
    told = {"rank": 2, "kind": "TemporaryError", "message": "told to end"}
    (tmp_path / "error-2.json").write_text(json.dumps(told))
    assert str(rank_failure(tmp_path)) == "told to end"
