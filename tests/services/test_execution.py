"""One task: made once, reused after, resumed after a kill, recorded once; its errors are explained."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import PermanentError, TemporaryError, UserError
from iar.records import Lineage, Outcome
from iar.services import task_books
from iar.services.execution import Finished, execute
from iar.services.workspace import Workspace

Stage = Callable[[RunFile, dict[str, Path], Path, Any], Outcome]


class World:
    """A state folder with a stand-in for the stage base_model and for tracking."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = tmp_path / "state"
        self.settings = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": str(tmp_path)}})
        self.calls = 0
        self.tracked: list[str] = []
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("IAR_STATE", str(self.state))
        tracking = SimpleNamespace(Tracker=lambda *arguments: SimpleNamespace(log_stage=self.log_stage, uri="mlflow"))
        monkeypatch.setitem(sys.modules, "iar.services.tracking", tracking)

    def log_stage(self, task: str, **named: Any) -> str:
        self.tracked.append(task)
        return "run-1"

    def run(self, stage: Stage, name: str = "") -> Finished:
        def counted(*arguments: Any) -> Outcome:
            self.calls += 1
            return stage(*arguments)

        self.monkeypatch.setitem(sys.modules, "iar.stages.base_model", SimpleNamespace(run=counted))
        return execute("base_model", self.settings.canonical(), {}, name=name)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def good(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
    (out / "model.bin").write_text("weights")
    made = Lineage("checkpoint", "f" * 64, "theta_0", {})
    return Outcome({"megabytes": 1.0, "nothing": float("nan")}, "**ok**", (made,))


def test_a_finished_task_is_reused_and_recorded_once(world: World) -> None:
    first, second = world.run(good), world.run(good)
    assert not first.reused and second.reused
    assert str(first.ref) == str(second.ref)
    assert world.calls == 1
    assert world.tracked == ["base-model"]
    entry = json.loads((Workspace(world.state).run(world.settings.run_id) / "tasks/base-model.json").read_text())
    assert entry["reused"] and entry["metrics"] == {"megabytes": 1.0}


def test_a_crash_between_publishing_and_recording_is_made_good(world: World) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with world.monkeypatch.context() as patch:
        patch.setattr(task_books, "_record_lineage", broken)
        with pytest.raises(KeyboardInterrupt):
            world.run(good)
    assert world.run(good).reused
    assert world.tracked == ["base-model"]


def test_a_killed_stage_finds_its_own_partial_files_again(world: World) -> None:
    def killed(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
        (out / "half.txt").write_text("half")
        raise KeyboardInterrupt

    def resumed(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
        assert (out / "half.txt").read_text() == "half"
        return good(run_file, inputs, out, context)

    with pytest.raises(KeyboardInterrupt):
        world.run(killed)
    assert {file.name for file in world.run(resumed).ref.path.iterdir()} == {"half.txt", "model.bin", "manifest.json"}


def test_a_damaged_artifact_is_made_again(world: World) -> None:
    (world.run(good).ref.path / "model.bin").write_text("torn")
    assert not world.run(good).reused
    assert world.run(good).ref.open(verify=True)


def test_a_full_disk_is_one_line(world: World) -> None:
    def full(*arguments: Any) -> Outcome:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match=r"^no space left for .*state: free some, then run the same command$"):
        world.run(full)


def test_two_writers_of_one_artifact_are_refused(world: World) -> None:
    def nested(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Any) -> Outcome:
        return world.run(good).outcome

    with pytest.raises(TemporaryError, match="is being written by another process"):
        world.run(nested)


def test_errors_of_a_stage_pass_unchanged(world: World) -> None:
    def failing(*arguments: Any) -> Outcome:
        raise PermanentError("loss is not finite at step 3")

    with pytest.raises(PermanentError, match=r"^loss is not finite at step 3$"):
        world.run(failing)
