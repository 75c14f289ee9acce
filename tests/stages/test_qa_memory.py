"""The QA build's memory at two sizes: what grows is little beside what a document and its questions take."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("qa_memory.py")
# Two texts held in memory with their records and n-grams took 17 kB a question before, and there are three a document.
MOST_BYTES_A_DOCUMENT = 20_000


def build(count: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, str(SCRIPT), str(count), str(folder)]
    made = subprocess.run(command, cwd=SCRIPT.parents[2], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return found


def test_memory_grows_by_little_a_document(tmp_path: Path) -> None:
    small, large = (build(count, tmp_path / str(count)) for count in (200, 800))
    assert (small["documents"], large["documents"]) == (200, 800)
    assert large["questions"] > 3.9 * small["questions"] > 2000
    assert (large["peak"] - small["peak"]) / 600 < MOST_BYTES_A_DOCUMENT
