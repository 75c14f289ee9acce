"""What the finished tasks of a run took, beside what was estimated."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.records import ItemScore, ModelScores, Reply, from_json, read_records
from iar.services.baselines import trained_tokens
from iar.services.checkpoints import read_json
from iar.services.diagnostics import FOLDER as DIAGNOSTICS
from iar.services.llm_spending import bought
from iar.services.looks import read_looks
from iar.services.scoring import ITEMS, REPLIES, SCORES
from iar.services.vault import replies_told
from iar.services.workspace import STEPS, Ref, Workspace

TEACH = ("qa_build", "qa_shard")
ON_ONE_GPU = ("fisher", "judge_eval", "locked_test", "prune", "sdft_rewrite")


@dataclass(frozen=True)
class Actual:
    """A finished task: wall time of the try that made it, tokens trained over or generated, tokens bought and money.

    gpu_hours None where it is not known that it ran on GPUs. `reused`: made by an earlier run.
    """

    seconds: float
    gpu_hours: float | None
    tokens: int
    llm_tokens: int
    llm_money: float
    reused: bool


def built_data(run_file: RunFile) -> Path | None:
    """Return the finished qa-build artifact of a run, if it has one here."""
    marker = _tasks(run_file) / "qa-build.json"
    return Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"]).path if marker.is_file() else None


def actuals(run_file: RunFile) -> dict[str, Actual]:
    """Return what each finished task of a run took, by task; {} where the run is not in this state folder."""
    return dict(_actuals(run_file))


def _actuals(run_file: RunFile) -> Iterator[tuple[str, Actual]]:
    state, platform = Workspace.of(run_file).state, run_file.platform
    markers = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(_tasks(run_file).glob("*.json"))]
    manifests = [Ref.parse(marker["ref"]).open() for marker in markers]
    on_gpus = bool(platform.backend == "kubeflow" and platform.pool.gpu)
    on_gpus |= any("mfu" in marker["metrics"] for marker in markers)
    for marker, manifest in zip(markers, manifests, strict=True):
        ref = Ref.parse(marker["ref"])
        trained = (ref.path / STEPS).is_file()
        tokens = trained_tokens(ref.path).tokens if trained else _generated(ref.path, run_file, state)
        gpus = platform.processes if trained else int(manifest.stage in ON_ONE_GPU)
        hours = manifest.seconds * gpus / 3600 if on_gpus else None
        teaching = [one for one in manifests if one.stage in TEACH] if manifest.stage == "qa_build" else [manifest]
        spans = [(one.started, one.started + one.seconds) for one in teaching]
        spent = bought(run_file, state, manifest.stage, spans)
        yield marker["task"], Actual(manifest.seconds, hours, tokens, *spent, bool(marker["reused"]))


def _tasks(run_file: RunFile) -> Path:
    return Workspace.of(run_file).run(run_file.run_id) / "tasks"


def _generated(artifact: Path, run_file: RunFile, state: Path) -> int:
    """Return the tokens of all replies that a task generated itself, of those to private suites as far as known."""
    unshared = [path for path in (artifact / REPLIES, *artifact.glob(f"{DIAGNOSTICS}/*/{REPLIES}")) if path.is_file()]
    total = sum(reply.tokens for path in unshared for reply in read_records(path, Reply))
    for folder in (path.parent for path in artifact.glob(f"*/{REPLIES}")):
        scores = from_json(ModelScores, json.loads((folder / SCORES).read_text(encoding="utf-8")))
        taken_over = {suite.suite for suite in scores.suites if suite.details.get("reused_share") == 1.0}
        suite_of = {item.item_id: item.suite for item in read_records(folder / ITEMS, ItemScore)}
        replies = read_records(folder / REPLIES, Reply)
        total += sum(reply.tokens for reply in replies if suite_of.get(reply.item_id) not in taken_over)
    return total + sum(reply.tokens for reply in _told(artifact, run_file, state))


def _told(artifact: Path, run_file: RunFile, state: Path) -> Iterator[Reply]:
    """Yield the replies to private suites, which are the same on validation and test: generated for the first."""
    for look in read_looks([artifact]):
        if look.private and look.split == "validation":
            weights = read_json(artifact / look.model / SCORES).get("checkpoint_digest", "")
            yield from replies_told(run_file, state, look, weights)
