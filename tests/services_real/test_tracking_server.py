"""Tracking against a real `mlflow server` that keeps the artifacts itself."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.tracker_cases import *  # noqa: F403
from tests.services_real.conftest import free_port

pytestmark = pytest.mark.services

START_SECONDS = 600


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("mlflow-server")
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{home}/server.db", "--artifacts-destination", str(home / "artifacts"),
    ]  # fmt: skip
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_healthy(address, server, home / "log")
            yield address
        finally:
            os.killpg(server.pid, 15)
            server.wait(120)


def wait_until_healthy(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"mlflow server did not start:\n{log.read_text()[-2000:]}")
