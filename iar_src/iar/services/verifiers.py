"""Verifiers before they judge: rules and judges are attacked, and put before answers that people graded.

What a language model is asked here goes through the cache of its client: each question is bought once for a judge at a
version, whichever task or run asks it.
"""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from iar.errors import UserError
from iar.methods.attacks import Attack, Posed, attack, holds_answer, own_attacks
from iar.methods.digest import digest_json
from iar.methods.grading import Grading
from iar.methods.verification import objection
from iar.records import (
    AttackResult,
    CalibrationResult,
    EvalItem,
    LabelledAnswer,
    Lineage,
    VerifierAudit,
    from_json,
    read_records,
    to_json,
)
from iar.services.judges import Judge

VERIFIERS, OWN_ATTACKS = "verifiers.jsonl", "own-attacks.jsonl"
QUESTIONS_PER_KIND = 20
"""Questions attacked before judging: with none of 540 attacks successful, fewer than 1 in 100 are at 95 %."""

Progress = Callable[[int, int], None]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Suite:
    """What a verifier is asked in an audit, and the digest of all of it."""

    posed: tuple[Posed, ...]
    attacks: tuple[Attack, ...]
    labelled: tuple[LabelledAnswer, ...]

    @property
    def digest(self) -> str:
        """The same for the same texts."""
        return digest_json(
            {
                "posed": [asdict(one) for one in self.posed],
                "attacks": [asdict(one) for one in self.attacks],
                "labelled": [asdict(one) for one in self.labelled],
            }
        )

    @property
    def gradings(self) -> list[Grading]:
        """Attacks first, then the labelled answers."""
        return [
            *(_shown(self.posed[one.place], one.text) for one in self.attacks),
            *(Grading(one.question, one.answer, one.reference, one.aliases) for one in self.labelled),
        ]


@cache
def calibration() -> tuple[LabelledAnswer, ...]:
    """Return the labelled answers that come with this package."""
    text = (resources.files("iar") / "calibration" / "answers.jsonl").read_text(encoding="utf-8")
    return tuple(from_json(LabelledAnswer, json.loads(line)) for line in text.splitlines())


def calibration_questions() -> list[Posed]:
    """Return the questions of the labelled answers: what is attacked where there are no others."""
    known = {one.question: one for one in calibration()}
    return [Posed(digest_json(q)[:12], q, (one.reference, *one.aliases)) for q, one in known.items()]


def posed(item: EvalItem) -> Posed:
    """Return a judged item as a question to attack."""
    points = tuple(item.reference.get("points", ()))
    answers = () if points else (item.reference["reference"], *item.reference.get("aliases", ()))
    return Posed(item.id, item.prompt, answers, points)


def make_suite(questions: Sequence[Posed], number: int, seed: int, own: Iterable[tuple[Posed, str]] = ()) -> Suite:
    """Return a suite on at most `number` of the questions, drawn by the seed; `own` are wrong answers that were given.

    Of these at most `number` are taken, none that holds an answer, each as it is and dressed up.
    """
    chance = random.Random(seed)
    places = sorted(chance.sample(range(len(questions)), min(number, len(questions))))
    chosen = [questions[place] for place in places]
    made = _of_own(own, number, seed, chance)
    attacks = [*attack(chosen, seed), *(replace(one, place=len(chosen) + one.place) for one in made.attacks)]
    return Suite((*chosen, *made.posed), tuple(attacks), calibration())


def regenerated_suite(own: Iterable[tuple[Posed, str]], number: int, seed: int) -> Suite:
    """Return the attacks that are made of wrong answers that models gave, of at most `number` of them, alone.

    They get better as the models do.
    """
    return _of_own(own, number, seed, random.Random(seed))


def _of_own(own: Iterable[tuple[Posed, str]], number: int, seed: int, chance: random.Random) -> Suite:
    wrong = list(dict.fromkeys(pair for pair in own if not holds_answer(pair[1], pair[0])))
    chosen = chance.sample(wrong, min(number, len(wrong)))
    attacks = [
        Attack(kind, place, text)
        for place, (one, first) in enumerate(chosen)
        for kind, text in own_attacks(one, _from_first(first, [text for other, text in wrong if other == one]), seed)
    ]
    return Suite(tuple(one for one, _ in chosen), tuple(attacks), ())


def _from_first(first: str, texts: Sequence[str]) -> list[str]:
    return [first, *(text for text in texts if text != first)]


def audit(judge: Judge, suite: Suite, on_progress: Progress | None = None) -> VerifierAudit:
    """Return what the judge makes of the suite. Raises what its client raises; replies bought before are kept."""
    scores = [one.score for one in judge.judge_many(suite.gradings, on_progress)]
    graded = zip(suite.labelled, scores[len(suite.attacks) :], strict=True)
    labelled = _by_kind((one.kind, (one.label, score)) for one, score in graded)
    return VerifierAudit(
        judge.name,
        judge.version,
        suite.digest,
        attack_results(suite.attacks, scores[: len(suite.attacks)]),
        tuple(_calibration_result(kind, found) for kind, found in labelled.items()),
    )


def attack_results(attacks: Sequence[Attack], scores: Iterable[float | None]) -> tuple[AttackResult, ...]:
    """Return by kind what the attacks scored, None = no readable score."""
    attacked = _by_kind((one.kind, score) for one, score in zip(attacks, scores, strict=True))
    return tuple(_attack_result(kind, found) for kind, found in attacked.items())


def audit_panel(
    judges: Sequence[Judge], items: Sequence[EvalItem], seed: int, update: Callable[[float, float, str], None]
) -> list[VerifierAudit]:
    """Audit every judge of a panel on a sample of the items it is to judge; `update(done, all, note)` counts judges."""
    return audit_each(judges, make_suite([posed(item) for item in items], QUESTIONS_PER_KIND, seed), update)


def audit_each(
    judges: Sequence[Judge], suite: Suite, update: Callable[[float, float, str], None]
) -> list[VerifierAudit]:
    """Return the audit of each judge on one suite."""
    audits = []
    for number, judge in enumerate(judges):
        audits.append(audit(judge, suite, _part(update, number, len(judges), f"audit of {judge.name}")))
    return audits


def admit(audits: Iterable[VerifierAudit], limit: float, key: str = "evaluate.judges") -> None:
    """Raise UserError naming `key` and the first verifier that may not judge, and what fooled it."""
    for one in audits:
        if found := objection(one, limit):
            raise UserError(
                f"{key}: {one.verifier} {found}, though none holds an answer, and {100 * limit:g} % is "
                f"allowed; take another judge, or raise evaluate.max_attack_success (iar verifier audit "
                f"{one.verifier} --run RUN.yaml shows all kinds)"
            )


def read_audits(folder: Path, name: str = VERIFIERS) -> list[VerifierAudit]:
    """Return the audits that judge-eval left in its artifact, or the locked test; none where an older version did."""
    path = folder / name
    return list(read_records(path, VerifierAudit)) if path.is_file() else []


def audit_entry(one: VerifierAudit) -> Lineage:
    """Return a verifier's entry of the registry: which attacks it met, and how it fared."""
    payload = to_json(one)
    return Lineage("verifier", digest_json(payload), f"{one.verifier} {one.version}", payload)


def _shown(one: Posed, reply: str) -> Grading:
    reference, *aliases = one.answers or ("",)
    return Grading(one.question, reply, reference, tuple(aliases), one.points)


def _by_kind(pairs: Iterable[tuple[str, Value]]) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for kind, value in pairs:
        found.setdefault(kind, []).append(value)
    return found


def _attack_result(kind: str, scores: Sequence[float | None]) -> AttackResult:
    valid = [score for score in scores if score is not None]
    fooled, full = sum(score > 0 for score in valid), sum(score == 1 for score in valid)
    return AttackResult(kind, len(scores), len(scores) - len(valid), fooled, full)


def _calibration_result(kind: str, pairs: Sequence[tuple[float, float | None]]) -> CalibrationResult:
    return CalibrationResult(
        kind,
        answers=len(pairs),
        failed=sum(score is None for _, score in pairs),
        exact=sum(label == score for label, score in pairs),
        right=sum(label == 1 for label, _ in pairs),
        credited=sum(score == 1 for _, score in pairs),
        both=sum(label == score == 1 for label, score in pairs),
    )


def _part(update: Callable[[float, float, str], None], number: int, count: int, note: str) -> Progress:
    return lambda done, total: update(number + done / max(total, 1), count, note)
