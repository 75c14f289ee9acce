"""What the finished tasks of a run took, beside what was estimated."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.records import ItemScore, ModelScores, Reply, from_json, read_records
from iar.services.baselines import trained_tokens
from iar.services.llm_budget import money
from iar.services.reply_cache import FILE_NAME, open_cache
from iar.services.scoring import ITEMS, REPLIES, SCORES
from iar.services.workspace import STEPS, Manifest, Ref, Workspace


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
    on_gpus = bool(platform.backend == "kubeflow" and platform.pool.gpu)
    on_gpus |= any("mfu" in marker["metrics"] for marker in markers)
    for marker in markers:
        ref = Ref.parse(marker["ref"])
        manifest = ref.open()
        trained = (ref.path / STEPS).is_file()
        tokens = trained_tokens(ref.path).tokens if trained else _generated(ref.path)
        gpus = (platform.processes if trained else 1) if trained or any(ref.path.rglob(REPLIES)) else 0
        hours = manifest.seconds * gpus / 3600 if on_gpus else None
        bought = _bought(run_file, state / "llm-cache", manifest)
        yield marker["task"], Actual(manifest.seconds, hours, tokens, *bought, bool(marker["reused"]))


def _tasks(run_file: RunFile) -> Path:
    return Workspace.of(run_file).run(run_file.run_id) / "tasks"


def _generated(artifact: Path) -> int:
    """Return the tokens of all replies that a task generated itself."""
    own = artifact / REPLIES
    total = sum(reply.tokens for reply in read_records(own, Reply)) if own.is_file() else 0
    for folder in (path.parent for path in artifact.glob(f"*/{REPLIES}")):
        scores = from_json(ModelScores, json.loads((folder / SCORES).read_text(encoding="utf-8")))
        taken_over = {suite.suite for suite in scores.suites if suite.details.get("reused_share") == 1.0}
        suite_of = {item.item_id: item.suite for item in read_records(folder / ITEMS, ItemScore)}
        replies = read_records(folder / REPLIES, Reply)
        total += sum(reply.tokens for reply in replies if suite_of.get(reply.item_id) not in taken_over)
    return total


def _bought(run_file: RunFile, cache: Path, manifest: Manifest) -> tuple[int, float]:
    """Return tokens and money of the LLM calls that ended while a task ran, of the models that it asks."""
    entries = [run_file.qa_build.teacher] if manifest.stage == "qa_build" else list(run_file.evaluate.judges)
    models = {(entry.model, entry.revision): entry for entry in entries if isinstance(entry, Endpoint)}
    if not models or not (cache / FILE_NAME).is_file():
        return 0, 0.0
    end = manifest.started + manifest.seconds
    with open_cache(cache) as calls:
        spent = [(one, calls.spent_between(*model, manifest.started, end)) for model, one in models.items()]
    return sum(one.tokens for _, one in spent), sum(money(endpoint, one) for endpoint, one in spent)
