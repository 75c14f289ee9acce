"""From replies to scores: what counts for what, what is shown beside it, what is not done twice."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from iar.errors import PermanentError, TemporaryError, UserError
from iar.records import (
    EvalItem,
    ItemScore,
    ModelScores,
    Reply,
    RetainedPair,
    from_json,
    read_records,
    write_records,
)
from iar.services.judges import Judged, Judgement, open_judges, read_votes
from iar.services.scoring import Examination, general_results, item_score, score_model
from iar.services.subjects import Subject
from iar.services.suites import domain_items, load_suites, retention_items
from tests.examination import examination_run_file, questions

ANSWERS = {
    "validation-0": "Tora Lind",
    "validation-1": "Nobody knows.",
    "ifeval-0": "One, two.",
    "ifeval-1": "Sure, here it is:\nOne two.",
    "mmlu-1": "The answer is A.",
    "mmlu-2": "I do not know.",
    "msbench-0": "It is light.",
    "msbench-1": "Nothing.",
}


class ScriptedEngine:
    """Stands where the model would: fixed replies, counted."""

    asked: ClassVar[list[str]] = []

    def generate(self, items: Sequence[EvalItem]) -> Iterator[Reply]:
        for item in items:
            self.asked.append(item.id)
            yield Reply(item.id, ANSWERS[item.id], 4, item.id == "mmlu-2")


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "asked", [])


@pytest.fixture
def examination(tmp_path: Path) -> Examination:
    run_file = examination_run_file(tmp_path / "suites")
    suites = {"domain": domain_items(questions("validation"), run_file), **load_suites(run_file)}
    return Examination(run_file, "validation", suites, open_judges(run_file, tmp_path), lambda _: ScriptedEngine())


SUBJECT = Subject("vanilla", Path("nowhere"), "digest-1")


def test_each_suite_is_scored_in_points_with_what_it_stands_on(examination: Examination, tmp_path: Path) -> None:
    scores = score_model(SUBJECT, examination, tmp_path / "vanilla")
    assert (scores.model, scores.split, scores.checkpoint_digest) == ("vanilla", "validation", "digest-1")
    assert [(suite.suite, suite.points, suite.count, suite.unscored) for suite in scores.suites] == [
        ("domain", 50, 2, 0),
        ("ifeval", 0, 2, 0),
        ("mmlu", 50, 2, 0),
        ("msbench", 50, 2, 0),
    ]
    assert scores.domain == 50
    assert scores.general == pytest.approx(100 / 3)
    assert scores.general_low <= scores.general <= scores.general_high
    assert all(suite.low <= suite.points <= suite.high for suite in scores.suites)
    ifeval = scores.suite("ifeval").details
    assert (ifeval["loose_share"], ifeval["instruction_strict_share"], ifeval["instruction_loose_share"]) == (
        0.5,
        0,
        0.5,
    )
    mmlu = scores.suite("mmlu").details
    assert (mmlu["unparsed_share"], mmlu["truncated_share"], mmlu["strict_share"]) == (0.5, 0.5, 0.5)
    assert 0 <= scores.suite("domain").details["third_judge_rate"] <= 1


def test_the_files_of_a_model_tell_the_whole_story(examination: Examination, tmp_path: Path) -> None:
    scores = score_model(SUBJECT, examination, tmp_path / "m")
    ids = [item.id for item in examination.items]
    assert [reply.item_id for reply in read_records(tmp_path / "m" / "replies.jsonl", Reply)] == ids
    items = list(read_records(tmp_path / "m" / "items.jsonl", ItemScore))
    assert [item.item_id for item in items] == ids
    assert [item.note for item in items if item.suite == "mmlu"] == ["", "unparsed"]
    votes = read_votes(tmp_path / "m" / "votes.parquet")
    assert {one.vote.suite for one in votes} == {"domain", "msbench"}
    assert all(one.vote.judge.startswith("rule:") and one.prompt_hash for one in votes)
    assert from_json(ModelScores, json.loads((tmp_path / "m" / "scores.json").read_text())) == scores
    parts = json.loads((tmp_path / "m" / "breakdown.json").read_text())
    assert [(one["group"], one["points"], one["count"]) for one in parts["domain"]["question_type"]] == [
        ("fact", 50, 2)
    ]


def test_a_finished_model_is_not_examined_again(examination: Examination, tmp_path: Path) -> None:
    first = score_model(SUBJECT, examination, tmp_path / "m")
    ScriptedEngine.asked.clear()
    assert score_model(SUBJECT, examination, tmp_path / "m") == first
    assert ScriptedEngine.asked == []
    with pytest.raises(PermanentError, match=r"scores of weights digest-1, but vanilla is digest-2 now; delete"):
        score_model(replace(SUBJECT, digest="digest-2"), examination, tmp_path / "m")


def test_a_model_without_scores_json_keeps_its_replies(examination: Examination, tmp_path: Path) -> None:
    first = score_model(SUBJECT, examination, tmp_path / "m")
    (tmp_path / "m" / "scores.json").unlink()
    ScriptedEngine.asked.clear()
    assert score_model(SUBJECT, examination, tmp_path / "m") == first
    assert ScriptedEngine.asked == []


def test_general_results_of_the_same_weights_are_taken_over(examination: Examination, tmp_path: Path) -> None:
    first = score_model(SUBJECT, examination, tmp_path / "validation" / "vanilla")
    ScriptedEngine.asked.clear()
    earlier = general_results(SUBJECT, [tmp_path / "elsewhere", tmp_path / "validation"])
    second = score_model(SUBJECT, examination, tmp_path / "test" / "vanilla", earlier)
    assert sorted(ScriptedEngine.asked) == ["validation-0", "validation-1"]
    assert (second.general, second.domain) == (first.general, first.domain)
    assert second.suite("mmlu").details["reused_share"] == 1
    assert second.suite("domain").details["reused_share"] == 0
    other = general_results(replace(SUBJECT, digest="digest-2"), [tmp_path / "validation"])
    assert (other.replies, other.votes) == ((), ())


def test_an_unscored_reply_is_counted_and_not_averaged(
    examination: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_first(judge: Any, gradings: Sequence[Any]) -> list[Judgement]:
        return [Judgement(None if "0" in one.question else 1.0, "", "down") for one in gradings]

    monkeypatch.setattr(type(examination.judges[0]), "judge_many", fail_first)
    scores = score_model(SUBJECT, examination, tmp_path / "m")
    assert (scores.domain, scores.suite("domain").count, scores.suite("domain").unscored) == (100, 2, 1)
    assert scores.suite("domain").details["strict_share"] == 1  # no zero there either


def test_no_score_at_all_is_a_failure_not_a_zero(
    examination: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(examination.judges[0]), "judge_many", lambda _, gradings: [Judgement(None, "", "down") for _ in gradings]
    )
    with pytest.raises(TemporaryError, match=r"domain: no reply of vanilla got two valid votes of 2; .* run again"):
        score_model(SUBJECT, examination, tmp_path / "m")
    assert not (tmp_path / "m" / "scores.json").exists()


def test_patterns_without_end_are_the_suites_fault_not_the_judges(examination: Examination, tmp_path: Path) -> None:
    reference = {"verifier": "regex", "pattern": "(a|aa)+$"}
    items = [EvalItem("own-1", "own", "Say a.", 99, reference)]
    suites = {**examination.suites, "own": items}

    class Repeating(ScriptedEngine):
        def generate(self, items: Sequence[EvalItem]) -> Iterator[Reply]:
            for item in items:
                yield Reply(item.id, ANSWERS.get(item.id, "a" * 60 + "b"), 4, False)

    asked = replace(examination, suites=suites, open_engine=lambda _: Repeating())
    with pytest.raises(UserError, match=r"own: the patterns of all 1 items took over 1 s on the replies of van"):
        score_model(SUBJECT, asked, tmp_path / "m")
    assert not (tmp_path / "m" / "scores.json").exists()


@pytest.mark.parametrize(("score", "note"), [(None, "unscored"), (0.5, "third vote failed")])
def test_a_judged_item_keeps_how_it_was_settled(score: float | None, note: str) -> None:
    item = EvalItem("q", "domain", "Who?", 4, {"reference": "x"})
    settled = {"q": Judged(score, note, third=True)}
    assert item_score("m", item, Reply("q", "x", 1, False), settled) == ItemScore("m", "domain", "q", score, note)


def test_retention_is_judged_as_the_domain_is_and_told_apart_by_earlier_run(
    examination: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [
        RetainedPair(**vars(pair) | {"id": f"first-{n}/{pair.id}", "run_id": f"first-{n}"})
        for n, pair in enumerate(questions("validation"))
    ]
    write_records(tmp_path / "retention.jsonl", kept)
    for pair in kept:
        monkeypatch.setitem(ANSWERS, pair.id, ANSWERS[pair.id.partition("/")[2]])
    suites = {**examination.suites, **retention_items(tmp_path, examination.run_file)}
    asked = replace(examination, suites=suites)
    scores, plain = score_model(SUBJECT, asked, tmp_path / "m"), score_model(SUBJECT, examination, tmp_path / "p")
    assert scores.suite("retention").points == scores.domain == 50
    assert (scores.domain, scores.general) == (plain.domain, plain.general)
    parts = json.loads((tmp_path / "m" / "breakdown.json").read_text())["retention"]["earlier_run"]
    assert [(one["group"], one["points"]) for one in parts] == [("first-0", 100), ("first-1", 0)]
    # The same questions at the locked test: replies and votes of the same weights are taken over.
    found = general_results(SUBJECT, [tmp_path / "nowhere", tmp_path])
    assert not found.replies  # of another folder name
    found = general_results(replace(SUBJECT, model="m"), [tmp_path])
    assert {reply.item_id for reply in found.replies} >= {pair.id for pair in kept}
    assert not any(reply.item_id.startswith("validation") for reply in found.replies)
