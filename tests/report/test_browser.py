"""The report and the registry's page as a browser shows them: drawn, nothing refused by their own policies."""

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from PIL import Image

from iar.report.data import collect
from iar.report.html import write_report
from iar.services.registry import Producer, Registry
from iar.services.registry_api import api
from tests.report.folders import RUN_FILE, make_run
from tests.services.registry_cases import a_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; tests/services_real/install.sh chromium installs it"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(folder, collect(make_run(folder / "run").inputs, RUN_FILE, "test-0123456789"))


@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_is_drawn_and_its_policy_refuses_nothing_of_it(page: Path, tmp_path: Path, width: int) -> None:
    shot = tmp_path / "page.png"
    command = [str(CHROMIUM), *OPTIONS, f"--window-size={width},3000", f"--screenshot={shot}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console
    with Image.open(shot) as image:
        assert image.size == (width, 3000)
        colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert colours and len(colours) > 100  # text, bars and the plot, not an empty page


def test_the_registry_s_page_shows_an_entry_and_its_tree(tmp_path: Path) -> None:
    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    entries = a_run()
    registry.record(entries.values(), Producer("r", "s", "1", "c", 17, 0.0, 1.0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(api(registry, ""), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    address = f"http://127.0.0.1:{port}/#checkpoint:{entries['tuned'].digest[:12]}"
    command = [str(CHROMIUM), *OPTIONS, "--virtual-time-budget=10000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    server.should_exit = True
    thread.join(timeout=30)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert "<h2>checkpoint tuned</h2>" in done.stdout
    assert f"document:{entries['d1'].digest[:12]}" in done.stdout
