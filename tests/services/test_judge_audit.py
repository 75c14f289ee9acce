"""The audit of archived votes: what was tampered with, lost or never cast is found and named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.records import ItemScore, Reply, read_records, write_json, write_records
from iar.services.judge_audit import Audit, audit_votes
from iar.services.judges import ArchivedVote, open_judges, read_votes, vote, write_votes
from iar.services.scoring import ITEMS, REPLIES, SCORES, VOTES, item_score
from iar.services.suites import domain_items, msbench_items
from tests.examination import examination_run_file, questions, write_questions

# The key alone, one word of it, a wrong name: where the first two judges agree and where they do not.
TEXTS = ("Tora Lind", "It was Lind, I think", "Nobody knows", "light")


class Archive:
    """One model's evaluation on validation: two questions of the domain, two of msbench."""

    def __init__(self, root: Path) -> None:
        self.run_file: RunFile = examination_run_file(root / "suites")
        self.data = write_questions(root / "data")
        self.folder = root / "judge-eval" / "ties-d0.3"
        self.folder.mkdir(parents=True)
        items = [*domain_items(questions("validation"), self.run_file), *msbench_items(self.run_file)]
        replies = {item.id: Reply(item.id, text, 3, False) for item, text in zip(items, TEXTS, strict=True)}
        verdicts = vote("ties-d0.3", items, replies, open_judges(self.run_file, root))
        write_records(self.folder / REPLIES, replies.values())
        write_votes(self.folder / VOTES, verdicts.votes)
        scores = [item_score("ties-d0.3", item, replies[item.id], verdicts.settled) for item in items]
        write_records(self.folder / ITEMS, scores)
        write_json(self.folder / SCORES, {})

    def audit(self) -> Audit:
        return audit_votes(self.run_file, self.data, [self.folder.parent])

    def change(self, edit: Callable[[list[ArchivedVote]], list[ArchivedVote]]) -> None:
        write_votes(self.folder / VOTES, edit(read_votes(self.folder / VOTES)))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def first(votes: list[ArchivedVote], **changed: object) -> list[ArchivedVote]:
    return [replace(votes[0], vote=replace(votes[0].vote, **changed)), *votes[1:]]


def test_an_archive_as_it_was_written_has_no_fault(archive: Archive) -> None:
    audit = archive.audit()

    assert audit.faults == () and audit.votes == audit.sampled >= 8
    assert audit.agreement.replies == 4 and audit.agreement.failed_rate.value == 0


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda votes: votes[1:], "votes of rule:token-f1"),
        (lambda votes: first(votes, judge="a stranger"), "votes of a stranger, rule:token-f1"),
        (lambda votes: first(votes, score=0.0), "voted 0.0, and 1.0 when asked again"),
        (lambda votes: first(votes, judge_version=""), "has no version, or neither a score nor an error"),
        (lambda votes: first(votes, judge_version="0"), "rule:exact voted in 2 versions: 0, 2"),
        (lambda votes: first(votes, score=None), "instead of rule:exact, rule:token-f1, rule:char-ngram"),
        (lambda votes: [replace(votes[0], prompt_hash="0" * 64), *votes[1:]], "voted on another text"),
    ],
)
def test_a_changed_archive_is_found(
    archive: Archive, edit: Callable[[list[ArchivedVote]], list[ArchivedVote]], named: str
) -> None:
    archive.change(edit)

    assert any(named in fault for fault in archive.audit().faults)


def test_a_score_that_its_votes_do_not_give_is_found(archive: Archive) -> None:
    scores = list(read_records(archive.folder / ITEMS, ItemScore))
    write_records(
        archive.folder / ITEMS, [replace(scores[2], score=1.0) if one == scores[2] else one for one in scores]
    )

    (fault,) = archive.audit().faults
    assert fault == "ties-d0.3 msbench-0: scored 1.0, and its votes settle to 0.0"


def test_a_reply_changed_after_the_vote_is_found(archive: Archive) -> None:
    replies = list(read_records(archive.folder / REPLIES, Reply))
    write_records(archive.folder / REPLIES, [replace(replies[0], text="Somebody else"), *replies[1:]])

    assert "ties-d0.3 validation-0: rule:exact voted on another text than the archived one" in archive.audit().faults


def test_a_missing_archive_is_a_fault_and_a_copy_of_scores_is_none(archive: Archive) -> None:
    (archive.folder / VOTES).unlink()
    assert archive.audit().faults == (f"{archive.folder / VOTES} is missing",)

    (archive.folder / ITEMS).unlink()
    assert archive.audit().faults == ()


def test_votes_of_a_model_are_read_again_from_its_archived_replies(archive: Archive) -> None:
    judges = [{"name": name, "base_url": "http://localhost:1/v1", "model": f"judge-{name}"} for name in "abc"]
    settings = archive.run_file.model_dump(mode="json")
    archive.run_file = RunFile.model_validate(settings | {"evaluate": settings["evaluate"] | {"judges": judges}})
    names = dict(zip(("rule:exact", "rule:token-f1", "rule:char-ngram"), "abc", strict=True))

    def as_models(votes: list[ArchivedVote]) -> list[ArchivedVote]:
        return [
            replace(one, vote=replace(one.vote, judge=names[one.vote.judge], raw=f'{{"score": {one.vote.score}}}'))
            for one in votes
        ]

    archive.change(as_models)
    assert archive.audit().faults == ()

    archive.change(lambda votes: first(votes, raw='{"score": 0.5}'))
    assert archive.audit().faults == ("ties-d0.3 validation-0: a voted 1.0, and 0.5 when asked again",)
