"""What grades the user's suites is attacked before it grades, as the judges are."""

import json
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.attacks import ATTACKS
from iar.methods.verification import attack_success
from iar.services.suite_verifiers import audit_suites, read_suite_audits
from iar.services.suites import load_suites
from iar.services.workspace import Context
from iar.stages import judge_eval
from tests.services.test_further_suites import ROWS, suite, with_suites
from tests.stages.test_judge_eval import inputs

__all__ = ["inputs"]

CHOICES = [
    {"prompt": f"Which gas is number {n}?", "choices": ["helium", "neon", "oxygen", "argon"], "answer": "ABCD"[n % 4]}
    for n in range(8)
]


def asked(folder: Path, verifier: str, rows: list[Any] | None = None, **keys: object) -> RunFile:
    return with_suites(folder / "general", suites=(str(suite(folder / "own", verifier, rows, **keys)),))


@pytest.mark.parametrize(
    ("verifier", "rows", "name"),
    [
        ("rule:exact", None, "rule:exact of units"),
        ("regex", None, "regex of units"),
        ("choice", CHOICES, "choice of units"),
    ],
)
def test_a_verifier_that_tells_answers_from_attacks_is_admitted(
    tmp_path: Path, verifier: str, rows: list[Any] | None, name: str
) -> None:
    run_file = asked(tmp_path, verifier, rows)
    (found,) = audit_suites(run_file, load_suites(run_file), 17)
    assert (found.verifier, attack_success(found.attacks).hits) == (name, 0), found.attacks
    # Some attacks on a choice quote the right one among the others, so they hold an answer.
    assert len({one.kind for one in found.attacks}) > len(ATTACKS) // 2


def test_a_pattern_that_anything_matches_is_refused_unless_the_suite_allows_it(tmp_path: Path) -> None:
    loose = [{"prompt": f"Name lamp {n}.", "pattern": "[a-z]"} for n in range(20)]
    run_file = asked(tmp_path, "regex", loose)
    with pytest.raises(UserError) as refused:
        audit_suites(run_file, load_suites(run_file), 17)
    said = str(refused.value)
    assert said.startswith("evaluate.suites: units: regex of units scored ") and "2 % is allowed; mend what its" in said
    run_file = asked(tmp_path, "regex", loose, max_attack_success=1)
    (found,) = audit_suites(run_file, load_suites(run_file), 17)
    assert (attack_success(found.attacks).value or 0) > 0.5


def test_it_is_refused_before_any_model_is_asked_and_stands_beside_the_scores(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    loose = asked(tmp_path, "regex", [{"prompt": "Name it.", "pattern": "."}])
    with pytest.raises(UserError, match="regex of units"):
        judge_eval.run(loose, inputs, tmp_path / "out", Context.for_tests(tmp_path))
    assert not list((tmp_path / "out").glob("*/replies.jsonl"))

    run_file = asked(tmp_path, "regex")
    outcome = judge_eval.run(run_file, inputs, tmp_path / "out", Context.for_tests(tmp_path))
    (found,) = read_suite_audits(tmp_path / "out")
    assert found.verifier == "regex of units" and outcome.metrics["attack success/regex of units"] == 0.0
    assert ", regex of units 0.0 % (" in outcome.markdown
    assert found.verifier in {entry.payload["verifier"] for entry in outcome.lineage if entry.kind == "verifier"}


def test_a_suite_that_the_panel_judges_has_no_verifier_of_its_own(tmp_path: Path) -> None:
    run_file = asked(tmp_path, "judge", [ROWS["judge"]])
    assert audit_suites(run_file, load_suites(run_file), 17) == []


def test_of_a_private_suite_the_audit_holds_no_text(tmp_path: Path) -> None:
    row = {"prompt": "Who keeps the zorblaxine?", "reference": "quuxifyl"}
    run_file = asked(tmp_path, "rule:exact", [row], private="true")
    (found,) = audit_suites(run_file, load_suites(run_file), 17)
    assert not any(text in json.dumps(vars(found), default=vars) for text in ("zorblaxine", "quuxifyl"))
