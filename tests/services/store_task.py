"""A task in a process of its own, which the test kills: a stage that makes the files it is told, with run.store."""

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from iar.config import RunFile
from iar.records import Outcome
from iar.services.execution import Finished, execute
from iar.services.workspace import damaged, read_manifest

MADE: list[str] = []


def content(name: str, size: int, salt: str = "") -> bytes:
    """Return `size` bytes that are the same for the same name."""
    return hashlib.shake_128(f"{salt}{name}".encode()).digest(size)


def stage(sizes: dict[str, int], salt: str = "") -> Any:
    """Return a stand-in for a stage module, which makes files of these sizes and says so in MADE."""

    def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
        MADE.append(context.stage)
        for path in inputs.values():
            assert read_manifest(path) and not list(damaged(path, read_manifest(path), verify=True))
        for name, size in sizes.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content(name, size, salt))
        return Outcome({"files": float(len(sizes))}, "**ok**")

    return SimpleNamespace(run=run)


def settings(folder: Path, store: str) -> RunFile:
    """Return a run file whose state folder is below `folder`."""
    run = {"name": "t", "state": str(folder / "state"), "store": store}
    return RunFile.model_validate({"run": run, "documents": {"path": str(folder)}})


def run_task(
    folder: Path, store: str, sizes: dict[str, int], salt: str = "", name: str = "base_model", **inputs: str
) -> Finished:
    """Run a stage on a machine of its own, `folder`; the stage is a stand-in."""
    sys.modules[f"iar.stages.{name}"] = stage(sizes, salt)  # type: ignore[assignment]
    logged = SimpleNamespace(log_stage=lambda *arguments, **named: "run-1", uri="mlflow")
    sys.modules["iar.services.tracking"] = SimpleNamespace(Tracker=lambda *arguments: logged)  # type: ignore[assignment]
    return execute(name, settings(folder, store).canonical(), inputs)


if __name__ == "__main__":
    run_task(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
