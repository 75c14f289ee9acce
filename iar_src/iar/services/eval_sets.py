"""What scores were measured on, as entries of the registry: evaluation sets, and the rules that grade without a judge.

A set is named by the digest of all that models are asked and replies are held against, which is the subject of its
looks too; one of our own by its dataset besides, or two datasets with equal questions would share an entry, and a
retraction of the one would taint the other's scores. Questions stand in no entry: one may be private, or the test.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import iar
from iar.methods.digest import digest_file, digest_json
from iar.methods.suite_grading import JUDGE
from iar.records import RETENTION, Lineage, Look, ModelScores
from iar.services.lm_eval_tasks import LM_EVAL
from iar.services.looks import read_looks
from iar.services.suites import CROSS

EVAL_SET, SCORER = "eval-set", "scorer"
MEASURED_ON, SCORED_BY, ASKED_FROM = "measured-on", "scored-by", "asked-from"
OWN = ("domain", CROSS, RETENTION)
METHODS = Path(iar.__file__).parent / "methods"
CODE = {"ifeval": "ifeval.py", "mmlu": "mmlu.py"}
USERS_CODE = "suite_grading.py"


@dataclass(frozen=True)
class Measured:
    """The sets and rules behind the scores of an evaluation, by suite."""

    sets: Mapping[str, Lineage]
    scorers: Mapping[str, Lineage]

    @classmethod
    def read(cls, out: Path, inputs: Mapping[str, Path]) -> "Measured":
        """Return those of the looks that were entered under `out`; `inputs` are the stage's, for the dataset."""
        data = dataset_asked(inputs)
        looks = {look.suite: look for look in read_looks([out])}
        sets = {suite: _set_entry(look, data) for suite, look in looks.items()}
        ruled = (look for look in looks.values() if look.scorer not in ("", JUDGE))
        return cls(sets, {look.suite: _scorer_entry(look) for look in ruled})

    @property
    def entries(self) -> tuple[Lineage, ...]:
        """All of them."""
        return *self.sets.values(), *self.scorers.values()

    def inputs(self, scores: ModelScores) -> list[tuple[str, str]]:
        """Return (role, digest) of what a model's scores were measured on and scored by."""
        suites = [suite.suite for suite in scores.suites]
        on = [(MEASURED_ON, self.sets[suite].digest) for suite in suites if suite in self.sets]
        return on + [(SCORED_BY, self.scorers[suite].digest) for suite in suites if suite in self.scorers]


def _set_entry(look: Look, data: str) -> Lineage:
    payload = {"suite": look.suite, "items": look.items, "private": look.private}
    if look.suite not in OWN:  # the same at validation and on the test
        return Lineage(EVAL_SET, look.set_digest, look.suite, payload)
    payload |= {"split": look.split, "questions": look.set_digest}
    inputs = ((ASKED_FROM, data),) if data else ()
    return Lineage(EVAL_SET, digest_json([look.set_digest, data]), f"{look.suite}, {look.split}", payload, inputs)


def _scorer_entry(look: Look) -> Lineage:
    code = METHODS / CODE.get(look.scorer, USERS_CODE)
    version = metadata.version("lm_eval") if look.scorer == LM_EVAL else digest_file(code)
    payload = {"role": "suite", "suite": look.suite, "rule": look.scorer, "version": version}
    return Lineage(SCORER, digest_json(payload), f"{look.scorer} of {look.suite}", payload)


def dataset_asked(inputs: Mapping[str, Path]) -> str:
    """Return the digest of the dataset that a stage was given, "" where it was given none."""
    path = inputs["data"] / "dataset.json" if "data" in inputs else None
    return str(json.loads(path.read_text(encoding="utf-8"))["digest"]) if path and path.is_file() else ""
