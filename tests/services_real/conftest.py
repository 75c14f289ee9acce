"""Real servers for the slow tier: PostgreSQL from the system's package, started once a session; MLflow's own."""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.ports import free_port

START_SECONDS = 600
VLLM_PYTHON = Path(__file__).parents[2] / ".vllm" / "bin" / "python"
MISSING = "PostgreSQL's server programs are missing: apt-get install -y postgresql (or tests/services_real/install.sh)"


def server_programs() -> Path:
    """Return the folder of initdb and pg_ctl, of the newest version installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).resolve())
    if not found:
        pytest.fail(MISSING)
    return found[-1].parent


def as_server_user(*command: str | Path) -> None:
    """Run a command as an unprivileged user: the server refuses to be started by root."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    result = subprocess.run([*prefix, *map(str, command)], cwd="/", capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"{command[0]}: {result.stdout}{result.stderr}")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """`host:port` of a server where user iar logs in with the password s3cret; gone after the session."""
    programs = server_programs()
    # Not under pytest's folder, which only its own user may enter.
    home = Path(mkdtemp(prefix="iar-postgresql-"))
    password_file = home / "password"
    password_file.write_text("s3cret")
    if os.geteuid() == 0:
        shutil.chown(home, "postgres")
        shutil.chown(password_file, "postgres")
    data, port = home / "data", free_port()
    as_server_user(
        programs / "initdb", "-D", data, "-U", "iar", "-A", "scram-sha-256", f"--pwfile={password_file}", "-N",
        "-E", "UTF8", "--locale=C.UTF-8",
    )  # fmt: skip
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home}"
    as_server_user(programs / "pg_ctl", "-D", data, "-o", options, "-l", home / "log", "-w", "start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        as_server_user(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(home)


@contextmanager
def mlflow_server(home: Path, database: str = "") -> Iterator[str]:
    """Run an `mlflow server` with everything below `home`, or its tables in `database`; yield its address."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", database or f"sqlite:///{home}/server.db",
        "--artifacts-destination", str(home / "artifacts"),
    ]  # fmt: skip
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_healthy(address, server, home / "log")
            yield address
        finally:
            os.killpg(server.pid, 15)
            server.wait(120)


@contextmanager
def vllm_server(home: Path, model: Path, name: str, *options: str, **environment: str) -> Iterator[str]:
    """Run vLLM's OpenAI server on the CPU with everything below `home`; yield its address."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "16",
        "--enforce-eager", *options,
    ]  # fmt: skip
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=home, env=vllm_environment() | environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_healthy(address, server, home / "log")
            yield address
        finally:
            os.killpg(server.pid, 15)
            server.wait(120)


def vllm_environment() -> dict[str, str]:
    """Return the environment of a process with vLLM: offline, and without this environment's packages."""
    offline = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline


def wait_until_healthy(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"{address} did not start:\n{log.read_text()[-2000:]}")
