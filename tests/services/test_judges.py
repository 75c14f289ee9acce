"""The panel at work: who is asked, what is archived, who is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from iar.config import RunFile
from iar.errors import PermanentError, UserError
from iar.methods.grading import Grading
from iar.records import EvalItem, Reply
from iar.services.judges import Judgement, open_judges, read_votes, same_family, vote, write_votes

ITEMS = [EvalItem(f"q{n}", "domain", f"Question {n}?", 8, {"reference": "x", "aliases": []}) for n in range(3)]
REPLIES = {item.id: Reply(item.id, f"reply {item.id}", 2, False) for item in ITEMS}
Verdict = float | None


class Scripted:
    """A judge with a fixed verdict a reply; None is a failed vote."""

    def __init__(self, name: str, verdicts: dict[str, Verdict], version: str = "1") -> None:
        self.name, self.version = name, version
        self._verdicts = verdicts
        self.asked: list[str] = []

    def judge_many(
        self, gradings: Sequence[Grading], on_progress: Callable[[int, int], None] | None = None
    ) -> list[Judgement]:
        keys = [grading.reply.removeprefix("reply ") for grading in gradings]
        self.asked += keys
        scores = [self._verdicts[key] for key in keys]
        return [
            Judgement(score, "raw", "" if score is not None else "unreadable", 90, 7, 0.25, 1.5) for score in scores
        ]


def panel() -> list[Scripted]:
    return [
        Scripted("one", {"q0": 1, "q1": 1, "q2": None}),
        Scripted("two", {"q0": 1, "q1": 0, "q2": 0.5}),
        Scripted("three", {"q1": 0.5, "q2": None}),
    ]


def test_the_third_judge_is_asked_only_where_two_do_not_settle_it() -> None:
    judges = panel()
    settled = vote("m", ITEMS, REPLIES, judges).settled
    assert [judge.asked for judge in judges] == [["q0", "q1", "q2"], ["q0", "q1", "q2"], ["q1", "q2"]]
    assert [(one.score, one.third) for one in settled.values()] == [(1, False), (0.5, True), (None, True)]


def test_every_vote_is_archived_failed_ones_too(tmp_path: Path) -> None:
    votes = vote("m", ITEMS, REPLIES, panel()).votes
    write_votes(tmp_path / "votes.parquet", votes)
    archived = read_votes(tmp_path / "votes.parquet")
    assert archived == votes
    assert [(one.vote.item_id, one.vote.judge, one.vote.score) for one in archived][-3:] == [
        ("q2", "one", None),
        ("q2", "two", 0.5),
        ("q2", "three", None),
    ]
    last = archived[-1].vote
    assert (last.error, last.prompt_tokens, last.completion_tokens) == ("unreadable", 90, 7)
    assert (last.cost, last.seconds) == (0.25, 1.5)
    assert len({one.prompt_hash for one in archived}) == 3


def test_an_archive_of_an_older_version_is_read_without_what_its_votes_cost(tmp_path: Path) -> None:
    votes = vote("m", ITEMS, REPLIES, panel()).votes
    write_votes(path := tmp_path / "votes.parquet", votes)
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns(["prompt_tokens", "completion_tokens", "cost", "seconds"]), path)
    free = {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0, "seconds": 0.0}
    assert [one.vote for one in read_votes(path)] == [replace(one.vote, **free) for one in votes]


def test_valid_votes_on_the_same_text_are_not_bought_again() -> None:
    votes = vote("m", ITEMS, REPLIES, panel()).votes
    judges = panel()
    again = vote("other", ITEMS, REPLIES, judges, votes)
    assert [judge.asked for judge in judges] == [["q2"], [], ["q2"]]
    assert {one.vote.model for one in again.votes} == {"other"}
    changed = panel()
    vote("m", ITEMS[:1], {"q0": Reply("q0", "reply q1", 2, False)}, changed, votes)
    assert changed[0].asked == ["q1"]
    newer = [Scripted("one", {"q0": 1}, version="2"), *panel()[1:]]
    vote("m", ITEMS[:1], REPLIES, newer, votes)
    assert newer[0].asked == ["q0"]


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "votes.parquet").write_bytes(b"PAR1")
    with pytest.raises(PermanentError, match=r"votes\.parquet: not a complete vote archive"):
        read_votes(tmp_path / "votes.parquet")


def run_file(*judges: object, allow: bool = False) -> RunFile:
    evaluate = {"judges": judges, "allow_same_family": allow}
    model = {"source": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    return RunFile.model_validate(
        {"run": {"name": "t"}, "documents": {"path": "."}, "model": model, "evaluate": evaluate}
    )


def endpoint(model: str) -> dict[str, str]:
    return {"name": "server", "base_url": "http://localhost:1", "model": model}


def test_rules_are_opened_by_name(tmp_path: Path) -> None:
    judges = open_judges(run_file("rule:exact", "rule:token-f1", "rule:char-ngram"), tmp_path)
    assert [judge.name for judge in judges] == ["rule:exact", "rule:token-f1", "rule:char-ngram"]
    grading = Grading("Who?", "Tora Lind", "Tora Lind", (), ())
    assert [judge.judge_many([grading]) for judge in judges] == [[Judgement(1.0, "", "")]] * 3


def test_a_judge_of_the_models_own_family_is_refused_unless_allowed(tmp_path: Path) -> None:
    own = ("rule:exact", "rule:token-f1", endpoint("HuggingFaceTB/SmolLM3-3B"))
    with pytest.raises(UserError, match=r"server \(HuggingFaceTB/SmolLM3-3B\) is of the family of .*allow_same_family"):
        open_judges(run_file(*own), tmp_path)
    assert open_judges(run_file(*own, allow=True), tmp_path)[2].name == "server"
    other = ("rule:exact", "rule:token-f1", endpoint("openai/gpt-oss-120b"))
    assert open_judges(run_file(*other), tmp_path)[2].name == "server"


@pytest.mark.parametrize(
    ("model", "other", "same"),
    [
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-4B", True),
        ("deepseek-r1-distill-qwen-7b", "Qwen/Qwen3-4B", True),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama3:8b", True),
        ("openai/gpt-oss-120b", "Qwen/Qwen3-4B", False),
        ("MiniMax-M2.5-Instruct", "microsoft/Phi-4-mini-instruct", False),
        ("smollm2-135m-instruct", "HuggingFaceTB/SmolLM3-3B", True),
    ],
)
def test_families_are_told_by_name(model: str, other: str, same: bool) -> None:
    assert same_family(model, other) is same
    assert same_family(other, model) is same
