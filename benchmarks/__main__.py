"""Run every benchmark, print its line and gather benchmarks/results.json.

python -m benchmarks
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from iar.records import write_json

FOLDER = Path(__file__).parent


def commit() -> str:
    """Return the commit that is measured, "" outside a git checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Run `bench_*.py` one after the other, each in a process of its own: a quiet machine for each."""
    results = {}
    for script in sorted(FOLDER.glob("bench_*.py")):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            command = [sys.executable, "-m", f"benchmarks.{script.stem}", "--out", str(out)]
            subprocess.run(command, cwd=FOLDER.parent, check=True)
            results |= json.loads(out.read_text())
    write_json(FOLDER / "results.json", {name: entry | {"commit": commit()} for name, entry in results.items()})


if __name__ == "__main__":
    main()
