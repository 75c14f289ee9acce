"""What the finished tasks of a run took, beside what was estimated."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.records import ItemScore, ModelScores, Reply, from_json, read_records
from iar.services.baselines import trained_tokens
from iar.services.diagnostics import FOLDER as DIAGNOSTICS
from iar.services.llm_budget import money
from iar.services.reply_cache import FILE_NAME, open_cache
from iar.services.scoring import ITEMS, REPLIES, SCORES
from iar.services.workspace import STEPS, Manifest, Ref, Workspace

TEACH = ("qa_build", "qa_shard")


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
        tokens = trained_tokens(ref.path).tokens if trained else _generated(ref.path)
        gpus = (platform.processes if trained else 1) if trained or any(ref.path.rglob(REPLIES)) else 0
        hours = manifest.seconds * gpus / 3600 if on_gpus else None
        teaching = [one for one in manifests if one.stage in TEACH] if manifest.stage == "qa_build" else [manifest]
        bought = _bought(run_file, state / "llm-cache", teaching)
        yield marker["task"], Actual(manifest.seconds, hours, tokens, *bought, bool(marker["reused"]))


def _tasks(run_file: RunFile) -> Path:
    return Workspace.of(run_file).run(run_file.run_id) / "tasks"


def _generated(artifact: Path) -> int:
    """Return the tokens of all replies that a task generated itself."""
    unshared = [path for path in (artifact / REPLIES, *artifact.glob(f"{DIAGNOSTICS}/*/{REPLIES}")) if path.is_file()]
    total = sum(reply.tokens for path in unshared for reply in read_records(path, Reply))
    for folder in (path.parent for path in artifact.glob(f"*/{REPLIES}")):
        scores = from_json(ModelScores, json.loads((folder / SCORES).read_text(encoding="utf-8")))
        taken_over = {suite.suite for suite in scores.suites if suite.details.get("reused_share") == 1.0}
        suite_of = {item.item_id: item.suite for item in read_records(folder / ITEMS, ItemScore)}
        replies = read_records(folder / REPLIES, Reply)
        total += sum(reply.tokens for reply in replies if suite_of.get(reply.item_id) not in taken_over)
    return total


def _bought(run_file: RunFile, cache: Path, tasks: Sequence[Manifest]) -> tuple[int, float]:
    """Return tokens and money of the LLM calls that ended while any of some tasks ran, of the models that they ask.

    What the shards of a QA build bought at once is that of the task which gathers them.
    """
    stages = {task.stage for task in tasks}
    if stages <= {"qa_shard"}:
        return 0, 0.0
    # In a locked test the teacher words the questions of the diagnostics anew.
    teacher = [run_file.qa_build.teacher] if stages & {"qa_build", "locked_test"} else []
    entries: list[object] = [*teacher, *(() if "qa_build" in stages else run_file.evaluate.judges)]
    if stages <= {"inject", "align"}:
        entries = [run_file.oracle.judge]
    models = {(entry.model, entry.revision): entry for entry in entries if isinstance(entry, Endpoint)}
    if not models or not (cache / FILE_NAME).is_file():
        return 0, 0.0
    with open_cache(cache) as calls:
        spent = [
            (one, calls.spent_between(*model, start, end))
            for model, one in models.items()
            for start, end in _spans(tasks)
        ]
    return sum(one.tokens for _, one in spent), sum(money(endpoint, one) for endpoint, one in spent)


def _spans(tasks: Sequence[Manifest]) -> list[tuple[float, float]]:
    """Return the times from start to end in which any of some tasks ran; no two overlap."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted((task.started, task.started + task.seconds) for task in tasks):
        if spans and start <= spans[-1][1]:
            start, end = spans[-1][0], max(spans.pop()[1], end)
        spans.append((start, end))
    return spans
