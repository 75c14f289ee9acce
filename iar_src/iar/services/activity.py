"""The activity of the registry that the execution of a task is: what decided it, what it read, where, and its cost."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.methods.digest import digest_json
from iar.methods.provenance import ROWS
from iar.records import FunnelStep, Lineage, from_json
from iar.services.dataset_lineage import CERTIFIED_BY, FILTERED_BY, WRITTEN_BY
from iar.services.linked_runs import UNLISTED
from iar.services.registry_records import RUNNING, Producer
from iar.services.surroundings import surroundings
from iar.services.workspace import Manifest, Workspace

COSTS = ("tokens", "target_tokens", "peak_memory_gb")

INGEST, FILTER, GENERATE, CERTIFY = "ingest", "filter", "generate", "certify"
DEDUP, DECONTAMINATE, SPLIT = "dedup", "decontaminate", "split"
KINDS = {
    "base_model": INGEST,
    "earlier_run": INGEST,
    "qa_documents": INGEST,
    "qa_shard": GENERATE,
    "qa_build": "build",
    "inject": "train",
    "align": "train",
    "baseline": "train",
    "sdft_rewrite": GENERATE,
    "fisher": "evaluate",
    "merge_candidate": "merge",
    "judge_eval": "evaluate",
    "prune": "select",
    "selector": "select",
    "locked_test": "evaluate",
    "register": "register",
}
"""What the tasks of a stage are in the registry."""
STEP_KINDS = {
    "documents": INGEST,
    "chunks": INGEST,
    "filtered": FILTER,
    "distinct": DEDUP,
    "verified": CERTIFY,
    "split": SPLIT,
}
"""What the steps of a QA build are; the endings of their names say the rest."""
STEP_ENDINGS = {"uncontaminated": DECONTAMINATE, "decontaminated": DECONTAMINATE, "deduplicated": DEDUP}
STEP_AGENTS = {FILTER: (FILTERED_BY,), GENERATE: (WRITTEN_BY,), CERTIFY: (CERTIFIED_BY,)}


def begun(
    run_file: RunFile, task: str, parts: Mapping[str, Any], inputs: Mapping[str, Manifest], started: float
) -> Producer:
    """Return a task that begins now, with the key `parts` of its result; `started` is Unix time."""
    settings = parts["settings"]
    return Producer(
        run_file.run_id, task, parts["code"], digest_json(settings), run_file.run.seed, started, 0.0, RUNNING,
        **vars(surroundings()), config=settings, used=tuple(used(inputs)), kind=KINDS.get(parts["stage"], ""),
    )  # fmt: skip


def used(inputs: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    """Yield (role, digest) of the datasets, models, scores and decisions that a task is given."""
    for role, manifest in sorted(inputs.items()):
        yield from ((role, one.digest) for one in manifest.outcome.lineage if one.kind not in UNLISTED)


def made(lineage: Iterable[Lineage]) -> tuple[tuple[str, str], ...]:
    """Return (role, digest) of what a task made; rows and documents, of which there may be a million, are left out."""
    return tuple((one.kind, one.digest) for one in lineage if one.kind not in ROWS | {"source", "document"})


def steps(whole: Producer, lineage: Iterable[Lineage], funnel: Iterable[FunnelStep]) -> Iterator[Producer]:
    """Yield the steps of a finished QA build as activities, in their order, each with its counts.

    They go on document by document, one in the other, so each has the time of the whole; its cost stands there alone.
    """
    of_kind = {one.kind: one for one in lineage}
    for step in funnel:
        dataset, rejects = of_kind["dataset"], of_kind["rejects"]
        kind = step_kind(step.step)
        roles = STEP_AGENTS.get(kind, ())
        counts = {"in": step.in_, "kept": step.kept} | {f"dropped: {why}": n for why, n in step.dropped.items()}
        outputs = [("dataset", dataset.digest)] * (kind == SPLIT) + [("rejects", rejects.digest)] * bool(step.dropped)
        yield replace(
            whole, stage=f"{whole.stage}/{step.step}", kind=kind, cost={}, counts=counts, made=tuple(outputs),
            used=tuple(one for one in dataset.inputs if one[0] in roles),
        )  # fmt: skip


def step_kind(step: str) -> str:
    """Return what a step of a QA build is: ingest, filter, generate, certify, dedup, decontaminate or split."""
    return STEP_KINDS.get(step) or STEP_ENDINGS.get(step.rpartition("_")[2], GENERATE)


def funnel_of(artifact: Path) -> list[FunnelStep]:
    """Return the account of the QA build in an artifact; [] where there is none."""
    path = artifact / "funnel.json"
    if not path.is_file():
        return []
    return [from_json(FunnelStep, step) for step in json.loads(path.read_text(encoding="utf-8"))]


def cost(
    run_file: RunFile, stage: str, inputs: Iterable[Manifest], started: float, ended: float,
    metrics: Mapping[str, float],
) -> dict[str, float]:  # fmt: skip
    """Return what a task took from `started` to `ended`, by unit: of its `metrics`, and what it bought of LLM servers.

    llm_money is in the currency of the run file's prices. A QA build has what its shards bought.
    """
    from iar.services.llm_spending import bought

    amounts = {name: value for name, value in metrics.items() if name in COSTS}
    shards = [(one.started, one.started + one.seconds) for one in inputs if one.stage == "qa_shard"]
    tokens, money = bought(run_file, Workspace.of(run_file).state, stage, [(started, ended), *shards])
    amounts |= {"llm_tokens": float(tokens)} if tokens else {}
    return amounts | ({"llm_money": money} if money else {})
