"""What a finished run offers for promotion: its model, how it was selected, and its scores on the test."""

import json
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.errors import NoFeasibleCandidate, UserError
from iar.methods.digest import digest_json
from iar.methods.provenance import scores_payload
from iar.records import ModelScores, Selection, TestReading, from_json, read_records, to_json
from iar.services.checkpoints import read_json
from iar.services.model_versions import MODEL
from iar.services.workspace import Ref, Workspace

EVALUATED = "judge-eval-"


@dataclass(frozen=True)
class Finalist:
    """What a finished run offers: its artifacts by task, its selection, and the model that was registered."""

    run_file: RunFile
    artifacts: dict[str, Ref]
    selection: Selection

    @property
    def decision(self) -> str:
        """Digest of the selection, as the registry knows it."""
        return digest_json(to_json(self.selection))

    @property
    def lineage(self) -> str:
        """Digest of the registered model, as the registry knows it."""
        return digest_json({"weights": self.selection.candidate_digest, "decision": self.decision})

    @property
    def model(self) -> Path:
        """The folder of the picked model."""
        return self.artifacts["register"].path / MODEL

    @property
    def scores(self) -> ModelScores | None:
        """The scores of the pick on the held-out test, if it took it."""
        tested = read_records(self.artifacts["locked-test"].path / "scores.jsonl", ModelScores)
        return next((one for one in tested if one.checkpoint_digest == self.selection.candidate_digest), None)

    @property
    def scores_entry(self) -> str:
        """Digest of these scores, as the registry knows them; "" without any."""
        if self.scores is None:
            return ""
        path = self.artifacts["locked-test"].path / "reading.json"
        mark = from_json(TestReading, read_json(path)).mark if path.is_file() else ""
        return digest_json(scores_payload(self.scores, mark))


def finalist(run_file: RunFile) -> Finalist:
    """Return what a run offers for promotion, whichever backend ran it.

    Raises UserError for a run that is not finished, NoFeasibleCandidate for one that ended without a pick.
    """
    folder = Workspace.of(run_file).run(run_file.run_id) / "tasks"
    evaluated = sorted(path.stem for path in folder.glob(f"{EVALUATED}*.json"))
    tasks = ("qa-build", *evaluated, "selector", "locked-test", "register")
    artifacts = {task: _artifact(folder, task) for task in tasks}
    decided = (artifacts["selector"].path / "selection.json").read_text(encoding="utf-8")
    selection = from_json(Selection, json.loads(decided))
    if not selection.pick:
        report = artifacts["register"].path / "report.html"
        raise NoFeasibleCandidate(
            f"run {run_file.run_id} has no feasible candidate, so nothing to promote; the reasons are in {report}"
        )
    return Finalist(run_file, artifacts, selection)


def registered_artifact(run_file: RunFile, run_id: str) -> Ref:
    """Return the artifact with the registered model of another run of this state folder. Raises UserError."""
    return _artifact(Workspace.of(run_file).run(run_id) / "tasks", "register")


def _artifact(folder: Path, task: str) -> Ref:
    marker = folder / f"{task}.json"
    if not marker.is_file():
        raise UserError(
            f"run {folder.parent.name} has not finished {task} in {folder.parent.parent.parent}; finish it, or name "
            "its state folder with --state"
        )
    ref = Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"])
    ref.open()
    return ref
