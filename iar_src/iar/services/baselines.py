"""Trained controls and baselines on disk: where each lies, and what it cost in tokens."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from iar.records import Baseline, from_json, to_json, write_json
from iar.services.workspace import STEPS

RECORD = "baseline.json"
ROLE = "baselines_"


@dataclass(frozen=True)
class TrainedTokens:
    """Tokens of all rows of a training, over all its epochs, and those of them the loss fell on."""

    tokens: int
    target_tokens: int

    def __add__(self, other: "TrainedTokens") -> "TrainedTokens":
        return TrainedTokens(self.tokens + other.tokens, self.target_tokens + other.target_tokens)


def trained_tokens(artifact: Path) -> TrainedTokens:
    """Return what a finished training counted in its step log."""
    lines = (artifact / STEPS).read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    return TrainedTokens(*(int(sum(step[name] for step in steps)) for name in ("tokens", "target_tokens")))


def write_baseline(out: Path, baseline: Baseline) -> None:
    """Record how the checkpoint under `out` was made."""
    write_json(out / RECORD, to_json(baseline))


def baseline_folders(inputs: Mapping[str, Path]) -> Iterator[tuple[Baseline, Path]]:
    """Yield the baselines among a stage's inputs (roles `baselines_1`, `baselines_2`, ...) with their folders."""
    for role, folder in inputs.items():
        if role.startswith(ROLE):
            yield from_json(Baseline, json.loads((folder / RECORD).read_text(encoding="utf-8"))), folder
