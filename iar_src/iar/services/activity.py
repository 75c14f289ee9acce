"""The activity of the registry that the execution of a task is: what decided it, what it read, where, and its cost."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from iar.config import RunFile
from iar.methods.digest import digest_json
from iar.services.linked_runs import UNLISTED
from iar.services.registry_records import RUNNING, Producer
from iar.services.surroundings import surroundings
from iar.services.workspace import Manifest, Workspace

COSTS = ("tokens", "target_tokens", "peak_memory_gb")


def begun(
    run_file: RunFile, task: str, parts: Mapping[str, Any], inputs: Mapping[str, Manifest], started: float
) -> Producer:
    """Return a task that begins now, with the key `parts` of its result; `started` is Unix time."""
    settings = parts["settings"]
    return Producer(
        run_file.run_id, task, parts["code"], digest_json(settings), run_file.run.seed, started, 0.0, RUNNING,
        **vars(surroundings()), config=settings, used=tuple(used(inputs)),
    )  # fmt: skip


def used(inputs: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    """Yield (role, digest) of the datasets, models, scores and decisions that a task is given."""
    for role, manifest in sorted(inputs.items()):
        yield from ((role, one.digest) for one in manifest.outcome.lineage if one.kind not in UNLISTED)


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
