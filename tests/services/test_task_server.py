"""Tasks as forks of one process: their exit codes, their output, their independence, their end."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from iar.services import task_server
from iar.services.task_server import TaskServer, forks_here

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tasks are forks on Linux only")


def command(folder: Path, body: str) -> list[str]:
    """What KFP would start for a component of this body."""
    code = f"import os, sys, time\n\ndef task():\n    {body}\n"
    given = json.dumps({"inputs": {}, "outputs": {"outputFile": str(folder / "output.json")}})
    arguments = ["--executor_input", given, "--function_to_execute", "task"]
    return ["sh", "-c", "install", "sh", "-ec", "start", code, *arguments]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(2)", 2),
        ("raise ValueError('wrong')", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_a_task_ends_with_its_own_code_and_the_next_one_runs(tmp_path: Path, body: str, code: int) -> None:
    with TaskServer.started(tmp_path / "log.txt") as server:
        assert server.run(command(tmp_path, body)) == code
        assert server.run(command(tmp_path, "print('after', flush=True)")) == 0
    log = (tmp_path / "log.txt").read_text()
    assert "after" in log
    assert ("ValueError: wrong" in log) == ("ValueError" in body)


def test_tasks_share_neither_variables_nor_modules(tmp_path: Path) -> None:
    leave = "os.environ['LEFT'] = 'x'; sys.modules['left'] = sys; print('own', os.environ['OWN'], flush=True)"
    look = "raise SystemExit(3 if 'LEFT' in os.environ or 'OWN' in os.environ or 'left' in sys.modules else 0)"
    with TaskServer.started(tmp_path / "log.txt") as server:
        assert server.run(command(tmp_path, leave), {"OWN": "its own"}) == 0
        assert server.run(command(tmp_path, look)) == 0
    assert "own its own" in (tmp_path / "log.txt").read_text()


def test_slow_imports_are_made_while_a_task_takes_long_and_not_before(tmp_path: Path) -> None:
    there = command(tmp_path, "raise SystemExit('torch' in sys.modules)")
    with TaskServer.started(tmp_path / "log.txt") as server:
        assert [server.run(there), server.run(there)] == [0, 0]
        assert server.run(command(tmp_path, "time.sleep(2)")) == 0
        assert server.run(there) == 1


def test_a_server_that_was_killed_counts_as_a_killed_task(tmp_path: Path) -> None:
    with TaskServer.started(tmp_path / "log.txt") as server:
        assert server.run(command(tmp_path, "os.kill(os.getppid(), 9)")) == -signal.SIGKILL
        assert server.run(command(tmp_path, "pass")) == -signal.SIGKILL


def test_ctrl_c_ends_the_task_and_not_the_server(tmp_path: Path) -> None:
    with TaskServer.started(tmp_path / "log.txt") as server:

        def interrupt() -> None:
            while not (tmp_path / "started").exists():
                time.sleep(0.02)
            for child in psutil.Process(os.getpid()).children(recursive=True):
                child.send_signal(signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        started = str(tmp_path / "started")
        assert server.run(command(tmp_path, f"open({started!r}, 'w').close(); time.sleep(60)")) not in (0, None)
        thread.join()
        assert server.run(command(tmp_path, "pass")) == 0


def test_where_a_gpu_is_no_process_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(task_server, "GPU_DEVICE", device)
    assert forks_here()
    device.touch()
    assert not forks_here()
