"""The summary of an evaluation stage: scores, and which of them training data may have given away."""

from dataclasses import replace
from pathlib import Path

import pytest

from iar.methods.digest import digest_bytes
from iar.records import EvalCheck, Look, ModelScores, SuiteScore, read_records, to_json, write_json
from iar.services.scores_outcome import scores_outcome
from iar.services.suites import SUITES
from iar.services.workspace import CHECKS, LOOKS

# One suite of the user beside those of the method.
ASKED = tuple(SuiteScore(name, 50, 40, 60, 10, 0) for name in (*SUITES, "house"))
SCORES = ModelScores("vanilla", "validation", "0" * 64, ASKED, 50, 50, 40, 60)


def checked(folder: Path, dataset: str, **unchecked: str) -> Path:
    folder.mkdir()
    names = ("validation", "test", "ifeval", "mmlu", "msbench", "house", "mine.jsonl")
    checks = [EvalCheck(dataset, name, "f" * 64, 5, 5, 9, 0, 1, unchecked.get(name, "")) for name in names]
    write_json(folder / CHECKS, [to_json(check) for check in checks])
    return folder


@pytest.mark.parametrize(
    ("data", "baseline", "warnings"),
    [
        ({}, {}, []),
        ({"mmlu": "no | network"}, {}, [r"mmlu: training data may give its prompts away (questions: no \| network)"]),
        ({"test": "empty", "mine.jsonl": "empty"}, {}, []),  # neither is behind a score
        ({"house": "empty"}, {}, ["house: training data may give its prompts away (questions: empty)"]),
        ({}, {"validation": "empty"}, ["validation: training data may give its prompts away (replay: empty)"]),
    ],
)
def test_a_score_on_an_unchecked_evaluation_has_a_warning(
    tmp_path: Path, data: dict[str, str], baseline: dict[str, str], warnings: list[str]
) -> None:
    inputs = {
        "data": checked(tmp_path / "data", "questions", **data),
        "baselines_1": checked(tmp_path / "replay", "replay", **baseline),
    }
    outcome = scores_outcome(tmp_path, [SCORES], inputs)
    assert outcome.markdown.count("UNCHECKED") == len(warnings)
    assert all(f"**UNCHECKED**: {warning}" in outcome.markdown for warning in warnings)
    assert outcome.metrics["vanilla/mmlu"] == 50
    assert list(read_records(tmp_path / "scores.jsonl", ModelScores)) == [SCORES]


def test_how_often_each_set_was_looked_at_stands_below_the_scores(tmp_path: Path) -> None:
    looks = [
        Look(model, suite, "validation", "s", 10, False, number)
        for suite in ("mmlu", "house")
        for number, model in ((3, "a"), (4, "b"))
    ]
    write_json(tmp_path / LOOKS, [to_json(one) for one in looks])
    outcome = scores_outcome(tmp_path, [SCORES], {"base": tmp_path})
    assert "| models scored on the set so far | - | - | 4 | - | - |" in outcome.markdown
    assert (outcome.metrics["looks/mmlu"], outcome.metrics["looks/house"]) == (4, 4)


def test_where_no_check_is_on_record_every_score_has_a_warning(tmp_path: Path) -> None:
    outcome = scores_outcome(tmp_path, [SCORES], {"base": tmp_path})
    assert outcome.markdown.count("no check is on record") == 4


def test_scores_are_settled_from_the_votes_on_record(tmp_path: Path) -> None:
    (tmp_path / "vanilla").mkdir()
    (tmp_path / "vanilla" / "votes.parquet").write_bytes(b"votes")
    copy = replace(SCORES, model="copy", duplicate_of="vanilla")

    votes, scores, duplicate = scores_outcome(tmp_path, [SCORES, copy], {"base": tmp_path}).lineage

    assert (votes.kind, votes.payload["file"]) == ("votes", digest_bytes(b"votes"))
    assert votes.inputs == (("cast-on", SCORES.checkpoint_digest),)
    assert scores.inputs == (("evaluated", SCORES.checkpoint_digest), ("settled-from", votes.digest))
    assert duplicate.inputs == (("evaluated", SCORES.checkpoint_digest),)


def test_equal_votes_on_another_model_are_an_entry_of_their_own(tmp_path: Path) -> None:
    """Else what is retracted with one model would taint the other."""
    (tmp_path / "vanilla").mkdir()
    (tmp_path / "vanilla" / "votes.parquet").write_bytes(b"votes")
    retrained = replace(SCORES, checkpoint_digest="e" * 64)

    made = [scores_outcome(tmp_path, [scores], {"base": tmp_path}).lineage for scores in (SCORES, retrained)]
    assert len({one.digest for lineage in made for one in lineage}) == 4


def test_equal_scores_on_the_questions_of_two_datasets_are_entries_of_their_own(tmp_path: Path) -> None:
    """Else a document that is retracted with one dataset would taint the scores, and the pick, of the other."""
    write_json(tmp_path / LOOKS, [to_json(Look("vanilla", "domain", "validation", "5" * 64, 10, False, 1))])
    made = []
    for dataset in ("a" * 64, "b" * 64):
        data = tmp_path / dataset
        data.mkdir()
        write_json(data / "dataset.json", {"digest": dataset})
        made.append(scores_outcome(tmp_path, [SCORES], {"data": data}).lineage)
    assert [[one.kind for one in lineage] for lineage in made] == [["eval-set", "scores"]] * 2
    assert len({one.digest for lineage in made for one in lineage}) == 4
