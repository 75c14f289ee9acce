"""Non-regression sets: each pick beside the model before it, on questions that a new version must not unlearn.

STATE/non-regression/<digest of items, engine and verifier>/<digest of the weights>.jsonl
    item scores of every pick, ids and numbers
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.methods.digest import digest_json
from iar.methods.paired import paired
from iar.records import (
    EvalItem,
    ItemScore,
    Lineage,
    Regression,
    Selection,
    from_json,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.engines import answering
from iar.services.registry import PROMOTE, ROLLBACK, Registry
from iar.services.suite_verifiers import grader_versions
from iar.services.user_suites import read_suite
from iar.services.vault import DIGITS, set_digest
from iar.services.workspace import REGRESSIONS

FOLDER = "non-regression"
BASE = "theta_0"


@dataclass(frozen=True)
class Before:
    """A model that came before a pick: the digest of its weights, and what it is in words."""

    weights: str
    name: str


def non_regression_suites(run_file: RunFile) -> list[str]:
    """Return the names of the suites that must not get worse."""
    suites = [read_suite(Path(place)) for place in run_file.evaluate.suites]
    return [suite.name for suite in suites if suite.non_regression]


def models_before(registry: Registry, run_file: RunFile, weights: str) -> Iterator[Before]:
    """Yield the models of this name that came before other weights: those that were promoted, then those picked.

    Each the newest first.
    """
    name = run_file.register.model_name
    moves = [one for one in registry.events(kinds=[PROMOTE, ROLLBACK]) if one.subject.startswith(f"{name}@")]
    promoted = {one.digest: one for one in registry.entities(str(move.payload["lineage"]) for move in moves)}
    for move in reversed(moves):
        if one := promoted.get(str(move.payload["lineage"])):
            yield from _before(one, f"promoted to {move.subject}", weights)
    for one in reversed(registry.of_kind("checkpoint")):
        if "candidate" in one.payload and one.name.startswith(f"{name} "):
            yield from _before(one, "picked before", weights)


def _before(one: Lineage, how: str, weights: str) -> Iterator[Before]:
    if one.payload.get("weights", weights) != weights:
        yield Before(str(one.payload["weights"]), f"{one.name} ({one.payload['weights'][:12]}, {how})")


def compare(
    run_file: RunFile,
    suites: Mapping[str, Sequence[EvalItem]],
    selection: Selection,
    scores: Mapping[str, Sequence[ItemScore]],
    state: Path,
    registry: Registry,
) -> list[Regression]:
    """Return the pick on each non-regression set beside the newest model before it that was scored on it likewise.

    Likewise is: by the same engine and the same verifier, for a stricter judge is no worse model. That is theta_0 where
    there is none. `scores`: item scores by model, of the pick and of theta_0. Keeps those of the pick for the next one.
    """
    found = []
    for suite in non_regression_suites(run_file):
        digest = set_digest(suites[suite])
        ours = [one for one in scores[selection.pick] if one.suite == suite]
        place = state / FOLDER / digest_json([digest, *_measure(run_file, suites[suite][0], state)])[:DIGITS]
        earlier = [one for one in models_before(registry, run_file, selection.candidate_digest) if _kept(place, one)]
        theirs = [one for one in scores[BASE] if one.suite == suite]
        against, weights = f"{BASE} (no earlier pick was scored on this set by this engine and verifier)", ""
        if earlier:
            against, weights = earlier[0].name, earlier[0].weights
            theirs = list(read_records(_file(place, weights), ItemScore))
        place.mkdir(parents=True, exist_ok=True)
        write_records(_file(place, selection.candidate_digest), ours)
        one = paired(suite, (suite,), ours, theirs, run_file.evaluate.resamples, run_file.run.seed)
        found.append(
            Regression(suite, digest, selection.pick, against, weights, one.points, one.low, one.high, one.items)
        )
    return found


def _measure(run_file: RunFile, item: EvalItem, state: Path) -> tuple[str, list[str]]:
    """Return how the replies to a suite are made, and the versions of what grades them."""
    return answering(run_file), grader_versions(run_file, item.reference["verifier"], state)


def _file(place: Path, weights: str) -> Path:
    return place / f"{weights[:DIGITS]}.jsonl"


def _kept(place: Path, one: Before) -> bool:
    return _file(place, one.weights).is_file()


def write_regressions(out: Path, found: Sequence[Regression]) -> None:
    """Write what `compare` returned; it is no content, as it depends on what was registered before."""
    write_json(out / REGRESSIONS, [to_json(one) for one in found])


def read_regressions(artifact: Path) -> list[Regression]:
    """Return what the locked test of a run found; none where there was no set, or an older version tested."""
    path = artifact / REGRESSIONS
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [from_json(Regression, one) for one in found]
