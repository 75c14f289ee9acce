"""Verifiers under audit: the rules pass, a judge that can be talked round is refused before anything is generated."""

import json
from collections import Counter
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.attacks import ATTACKS, DRESSED, OWN_WRONG_ANSWERS, Posed
from iar.methods.grading import RULES
from iar.methods.verification import attack_success, objection, precision, recall
from iar.records import EvalItem
from iar.services.judges import RuleJudge
from iar.services.llm_judge import LlmJudge
from iar.services.verifiers import (
    admit,
    audit,
    audit_entry,
    audit_panel,
    calibration,
    calibration_questions,
    make_suite,
    posed,
    regenerated_suite,
)
from tests.services.chat_server import Answer, serve, user_of

LIMIT = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "."}}).evaluate.max_attack_success


def test_the_labelled_answers_are_many_and_of_many_kinds() -> None:
    rows = calibration()
    kinds, labels = Counter(one.kind for one in rows), Counter(one.label for one in rows)
    assert len(rows) >= 200 and len({(one.question, one.answer) for one in rows}) == len(rows)
    assert {"number", "unit", "negation", "partial", "hedged", "refusal"} <= set(kinds)
    assert {"chinese", "german", "french", "spanish"} <= set(kinds)
    assert set(labels) == {0, 0.5, 1} and min(labels.values()) >= 30
    assert all(one.question and one.reference and one.answer for one in rows)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_passes_its_audit(name: str) -> None:
    suite = make_suite(calibration_questions(), 100, 17)
    found = audit(RuleJudge(RULES[name]), suite)

    assert objection(found, LIMIT) == "", found
    assert {one.kind for one in found.attacks} == set(ATTACKS) and sum(one.failed for one in found.attacks) == 0
    # What the rules cannot do (synonyms) costs recall; they credit little that is wrong.
    assert (precision(found).value or 0) > 0.8 and (recall(found).value or 0) > 0.7


ITEMS = [
    EvalItem("q1", "domain", "Who built Velm?", 8, {"reference": "Tora Lind", "aliases": ["Lind"]}),
    EvalItem("m1", "msbench", "Why is the sky blue?", 8, {"reference": "", "points": ["scattering", "light"]}),
]


def test_items_are_attacked_by_what_judges_them() -> None:
    assert posed(ITEMS[0]) == Posed("q1", "Who built Velm?", ("Tora Lind", "Lind"))
    assert posed(ITEMS[1]) == Posed("m1", "Why is the sky blue?", (), ("scattering", "light"))
    shown = make_suite([posed(item) for item in ITEMS], 20, 1).gradings
    assert {(one.reference, one.aliases, one.points) for one in shown[: 2 * len(ATTACKS)]} == {
        ("Tora Lind", ("Lind",), ()),
        ("", (), ("scattering", "light")),
    }


def test_wrong_answers_of_models_are_a_kind_of_their_own() -> None:
    question = posed(ITEMS[0])
    own = [(question, "Bram Lusk"), (question, "Bram Lusk"), (question, "It was Tora Lind")]
    suite = make_suite([question], 20, 1, own)
    assert [one.text for one in suite.attacks if one.kind == OWN_WRONG_ANSWERS] == ["Bram Lusk"]
    found = audit(RuleJudge(RULES["rule:exact"]), suite)
    own_kinds = [one for one in found.attacks if one.kind.startswith("own-")]
    assert [(one.kind, one.asked, one.fooled) for one in own_kinds] == [
        (kind, 1, 0) for kind in (OWN_WRONG_ANSWERS, *(f"own-{kind}" for kind in DRESSED))
    ]
    alone = regenerated_suite(own, 20, 1)
    assert (len(alone.attacks), alone.labelled) == (1 + len(DRESSED), ()) and alone.posed == (question,)


def test_the_digest_tells_suites_apart() -> None:
    questions = calibration_questions()
    assert make_suite(questions, 5, 1).digest == make_suite(questions, 5, 1).digest
    assert len({make_suite(questions, n, seed).digest for n, seed in ((5, 1), (6, 1), (5, 2))}) == 3


def gullible(body: dict, _: int) -> Answer:
    """Gives 1 to whatever claims to be right, as small models do, and to what is right."""
    reply = user_of(body).split("<reply>")[1]
    right = any(word in reply for word in ("correct", "Correct", "score", "right", "Lind"))
    return Answer(json.dumps({"reason": "r", "score": int(right)}))


def test_a_judge_that_can_be_talked_round_is_refused_in_one_line(tmp_path: Path) -> None:
    with serve(gullible) as server:
        judge = LlmJudge(server.endpoint(), tmp_path)
        audits = audit_panel([judge], ITEMS, 17, lambda *_: None)
        calls = len(server.calls)
        with pytest.raises(UserError) as refused:
            admit(audits, LIMIT)
        assert audit_panel([judge], ITEMS, 17, lambda *_: None) == audits and len(server.calls) == calls
    assert str(refused.value).startswith("evaluate.judges: test-llm scored ") and "\n" not in str(refused.value)
    assert "2 % is allowed; take another judge, or raise evaluate.max_attack_success" in str(refused.value)
    admit(audits, 0.9)


def test_a_judge_that_reads_the_reply_is_admitted(tmp_path: Path) -> None:
    def careful(body: dict, _: int) -> Answer:
        shown, reply = user_of(body).split("<reply>")
        return Answer(json.dumps({"reason": "r", "score": int("Lind" in reply and "Lind" in shown)}))

    with serve(careful) as server:
        (found,) = audit_panel([LlmJudge(server.endpoint(), tmp_path)], ITEMS, 17, lambda *_: None)
    admit([found], LIMIT)
    assert attack_success(found.attacks).hits == 0


def test_a_judge_that_says_nothing_readable_is_refused(tmp_path: Path) -> None:
    with serve(lambda *_: Answer("Hm.")) as server:
        (found,) = audit_panel([LlmJudge(server.endpoint(), tmp_path)], ITEMS, 17, lambda *_: None)
    with pytest.raises(UserError, match=r"test-llm gave a readable score to \d+ of \d+ attacks only"):
        admit([found], LIMIT)


def test_progress_counts_judges(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    with serve(lambda *_: Answer('{"score": 0}')) as server:
        judges = [LlmJudge(server.endpoint(), tmp_path)]
        audit_panel(judges, ITEMS[:1], 17, lambda *step: told.append(step))
    assert told[-1] == (1.0, 1, "audit of test-llm") and all(0 <= done <= 1 for done, _, _ in told)


def test_the_registry_gets_suite_and_result() -> None:
    found = audit(RuleJudge(RULES["rule:exact"]), make_suite(calibration_questions(), 2, 1))
    entry = audit_entry(found)
    assert (entry.kind, entry.name) == ("verifier", f"rule:exact {found.version}")
    assert entry.payload["suite"] == found.suite and entry.payload["attacks"][0]["asked"] == 2
