"""Verifiers of the user's suites before they grade: attacked on the suite's own questions, as judges are on theirs."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.attacks import Attack, Posed, attack
from iar.methods.digest import digest_json
from iar.methods.grading import RULES
from iar.methods.mmlu import LETTERS
from iar.methods.suite_grading import JUDGE, VERSIONS, grade_reply
from iar.methods.verification import objection
from iar.records import EvalItem, VerifierAudit, to_json
from iar.services.judges import open_judges
from iar.services.user_suites import SuiteFile, read_suite
from iar.services.verifiers import QUESTIONS_PER_KIND, attack_results, posed, read_audits

SUITE_VERIFIERS = "suite-verifiers.jsonl"


def audit_suites(run_file: RunFile, suites: Mapping[str, Sequence[EvalItem]], seed: int) -> list[VerifierAudit]:
    """Return the audit of each suite's rule, pattern or choice, by which the names of the suites stand.

    Raises UserError for a verifier that attacks fool more often than its suite, or else the run file, allows. Suites
    that the panel judges, and tasks of lm-eval with checks of their own, are not among them.
    """
    audits = []
    for suite in _own(run_file):
        one = _audit(suite, suites[suite.name], seed)
        limit = _limit(run_file, suite)
        if found := objection(one, limit):
            raise UserError(
                f"evaluate.suites: {suite.name}: {one.verifier} {found}, though none holds an answer, and "
                f"{100 * limit:g} % is allowed; mend what its rows ask for, or write max_attack_success into its YAML"
            )
        audits.append(one)
    return audits


def read_suite_audits(folder: Path) -> list[VerifierAudit]:
    """Return the audits that judge-eval left in its artifact; none where no suite has a verifier of its own."""
    return read_audits(folder, SUITE_VERIFIERS)


def verifier_of(suite: str, verifier: str) -> str:
    """Return the name of a suite's verifier in reports."""
    return f"{verifier} of {suite}"


def grader_versions(run_file: RunFile, verifier: str, state: Path) -> list[str]:
    """Return the version of what grades a user's suite: of its rule, pattern or choice, or of each judge by name."""
    if verifier != JUDGE:
        return [_version(verifier)]
    return [f"{judge.name} {judge.version}" for judge in open_judges(run_file, state / "llm-cache")]


def _version(verifier: str) -> str:
    rule = RULES.get(verifier)
    return rule.version if rule else VERSIONS[verifier]


def _own(run_file: RunFile) -> Iterator[SuiteFile]:
    suites = (read_suite(Path(place)) for place in run_file.evaluate.suites)
    return (suite for suite in suites if suite.verifier != JUDGE)


def _limit(run_file: RunFile, suite: SuiteFile) -> float:
    usual = run_file.evaluate.max_attack_success
    return usual if suite.max_attack_success is None else suite.max_attack_success


def _audit(suite: SuiteFile, items: Sequence[EvalItem], seed: int) -> VerifierAudit:
    chosen = random.Random(seed).sample(list(items), min(QUESTIONS_PER_KIND, len(items)))
    attacks = list(attack([_posed(item) for item in chosen], seed))
    scores = (grade_reply(chosen[one.place].prompt, chosen[one.place].reference, one.text)[0] for one in attacks)
    version = _version(suite.verifier)
    return VerifierAudit(
        verifier_of(suite.name, suite.verifier), version, _digest(chosen, attacks), attack_results(attacks, scores), ()
    )


def _posed(item: EvalItem) -> Posed:
    """Return an item as a question to attack; of a pattern nobody knows a text that answers it."""
    reference = item.reference
    if reference["verifier"] == "choice":
        right = reference["choices"][LETTERS.index(reference["answer"])]
        return Posed(item.id, item.prompt, (right,))
    return Posed(item.id, item.prompt, ()) if reference["verifier"] == "regex" else posed(item)


def _digest(items: Sequence[EvalItem], attacks: Sequence[Attack]) -> str:
    return digest_json({"posed": [to_json(item) for item in items], "attacks": [vars(one) for one in attacks]})
