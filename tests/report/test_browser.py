"""The report as a browser shows it: drawn, nothing refused by its own policy, no script, narrow and wide."""

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from iar.report.data import collect
from iar.report.html import write_report
from tests.report.folders import RUN_FILE, make_run

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
