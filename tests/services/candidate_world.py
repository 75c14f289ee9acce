"""A run of a grid of candidates, all of its stages but the merge stand-ins."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iar.config import RunFile
from iar.records import Candidate, EarlierSet, Lineage, Outcome, read_records, write_json, write_records
from iar.services.checkpoints import weights_digest
from iar.services.execution import Finished, execute
from iar.services.workspace import Context
from tests.services.merge_parents import derive, noisy

PICK = "ties-d0.3"


def quiet(done: float, total: float, note: str) -> None:
    """Report to nobody."""


class World:
    """A run of base-model, align, merge-candidate, selector and register; all but the merge are stand-ins."""

    def __init__(self, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.model, self.pick, self._patch = folder, model, PICK, monkeypatch
        self.move("state")
        tracker = SimpleNamespace(log_stage=lambda *a, **k: "run-1", finish=lambda status: None, uri="mlflow")
        monkeypatch.setitem(sys.modules, "iar.services.tracking", SimpleNamespace(Tracker=lambda *a: tracker))
        for stage in ("base_model", "earlier_run", "align", "selector", "register", "judge_eval"):
            monkeypatch.setitem(sys.modules, f"iar.stages.{stage}", SimpleNamespace(run=getattr(self, stage)))
        self.settings = self.with_settings()

    def move(self, name: str) -> None:
        """Go on as another machine, whose state folder is empty."""
        self.state = self.folder / name
        self._patch.setenv("IAR_STATE", str(self.state))

    def with_settings(self, **sections: Any) -> RunFile:
        whole = {"run": {"name": "t"}, "documents": {"path": str(self.folder)}} | sections
        return RunFile.model_validate(whole)

    def base_model(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        derive(self.model, out / "copy", lambda tensors: tensors)
        for path in (out / "copy").iterdir():
            path.rename(out / path.name)
        (out / "copy").rmdir()
        return Outcome({}, "", (Lineage("checkpoint", weights_digest(out), "theta_0", {}),))

    def earlier_run(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        (out / "1").mkdir()
        first = derive(self.model, out / "1" / "checkpoint", lambda tensors: {n: v * 1.5 for n, v in tensors.items()})
        write_records(out / "sets.jsonl", [EarlierSet("first", weights_digest(first), "d" * 64, 1)])
        return Outcome({}, "", (Lineage("checkpoint", weights_digest(first), "theta_IA", {}),))

    def align(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        derive(self.model, out / "checkpoint", noisy)
        return Outcome({}, "", (Lineage("checkpoint", weights_digest(out / "checkpoint"), "theta_IA", {}),))

    def selector(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        write_json(out / "selection.json", {"pick": self.pick})
        return Outcome({}, "")

    def register(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        (out / "report.html").write_text("report")
        return Outcome({}, "")

    def judge_eval(self, run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
        return Outcome({}, "")

    def run(self, **sections: Any) -> dict[str, Finished]:
        """Run the tasks as the pipeline does; return them by name."""
        self.settings = self.with_settings(**sections)
        text, done = self.settings.canonical(), {}
        done["base-model"] = execute("base_model", text, {})
        base = done["base-model"].handed_on
        inject = base  # stand-ins read nothing of these
        done["align"] = execute("align", text, {"data": base, "base": base, "start": inject}, "align")
        tuned = done["align"].handed_on
        before = {}
        if self.settings.run.on:
            done["earlier-run"] = execute("earlier_run", text, {"base": base})
            before = {"earlier": done["earlier-run"].handed_on}
        merge = {"base": base, "tuned": tuned, **before}
        done["merge-candidate-1"] = execute("merge_candidate", text, merge, "merge-candidate-1", 1, 1)
        merged = done["merge-candidate-1"].handed_on
        scores = execute("judge_eval", text, {"data": base, "base": base, "candidates": merged}, "scores").handed_on
        judged = {"references": base, "candidates_1": merged, "scores_1": scores}
        done["selector"] = execute("selector", text, {"data": base, **judged}, "selector")
        beside = {"data": base, "inject": inject, "vanilla": tuned, **merge, **judged}
        done["register"] = execute("register", text, beside | {"selector": done["selector"].handed_on})
        return done


def weights(artifact: Path) -> set[str]:
    return {path.parent.name for path in artifact.glob("*/*.safetensors")}


def records(artifact: Path) -> dict[str, Candidate]:
    return {one.id: one for one in read_records(artifact / "candidates.jsonl", Candidate)}
