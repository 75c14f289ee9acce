"""What the archive of votes lets anybody check after a run: who voted, on which text, and that the scores follow.

Rules vote the same on the same text, so a sample of their votes is cast again. A model may not repeat itself: its
votes must be complete, each with the reply that it was read from.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.methods.agreement import Agreement, agreement
from iar.methods.ballots import collect
from iar.methods.digest import digest_json
from iar.methods.grading import RULES, Grading
from iar.methods.panel import needs_third
from iar.records import EvalItem, ItemScore, QAPair, Reply, Vote, read_records, to_json
from iar.services.judges import ArchivedVote, grading, judge_names, read_votes, settled
from iar.services.scoring import ITEMS, JUDGED_ITEMS, REPLIES, SCORES, VOTES
from iar.services.suites import JUDGED, domain_items, msbench_items

SAMPLE = 200


@dataclass(frozen=True)
class Audit:
    """`sampled` votes were cast or read again. `faults` are one line each."""

    agreement: Agreement
    votes: int
    sampled: int
    faults: tuple[str, ...]


@dataclass(frozen=True)
class _Archived:
    """An archived vote with what its judge was shown, and where it lies."""

    place: str
    cast: ArchivedVote
    shown: Grading


def audit_votes(run_file: RunFile, data: Path, examinations: Sequence[Path]) -> Audit:
    """Audit the votes below the folders of judge-eval and locked-test; `data` holds the questions of validation.

    Raises PermanentError for a damaged archive, UserError where it has no questions and those of msbench are gone.
    """
    judges = judge_names(run_file)
    archive: list[_Archived] = []
    faults: list[str] = []
    for examination in examinations:
        items = {item.id: item for item in _judged_items(examination, data, run_file)}
        for scores in sorted(examination.glob(f"*/{SCORES}")):
            found, wrong = _audit_model(scores.parent, items, judges)
            archive += found
            faults += wrong
    faults += _several_versions(archive)
    sample = random.Random(run_file.run.seed).sample(archive, min(SAMPLE, len(archive)))
    faults += [fault for one in sample for fault in _cast_again(one)]
    ballots = collect((one.cast.vote for one in archive), judges)
    agreed = agreement(ballots, run_file.evaluate.resamples, run_file.run.seed)
    return Audit(agreed, len(archive), len(sample), tuple(faults))


def _judged_items(examination: Path, data: Path, run_file: RunFile) -> Iterator[EvalItem]:
    """Yield what was judged, from the archive; one made before it held that has the sources of the run file."""
    if (examination / JUDGED_ITEMS).is_file():
        yield from read_records(examination / JUDGED_ITEMS, EvalItem)
        return
    yield from msbench_items(run_file)
    for questions in (data / "validation.jsonl", examination / "questions.jsonl"):
        if questions.is_file():
            yield from domain_items(list(read_records(questions, QAPair)), run_file)


def _audit_model(
    folder: Path, items: Mapping[str, EvalItem], judges: Sequence[str]
) -> tuple[list[_Archived], list[str]]:
    """Return the votes on one model's replies, and every way in which they do not carry its scores."""
    if not (folder / VOTES).is_file():
        copied = not (folder / ITEMS).is_file()  # equal weights are evaluated once; a copy has scores alone
        return [], [] if copied else [f"{folder / VOTES} is missing"]
    replies = {reply.item_id: reply for reply in read_records(folder / REPLIES, Reply)}
    ballots: dict[str, list[ArchivedVote]] = defaultdict(list)
    for one in read_votes(folder / VOTES):
        ballots[one.vote.item_id].append(one)
    archive: list[_Archived] = []
    faults: list[str] = []
    for score in read_records(folder / ITEMS, ItemScore):
        if score.suite not in JUDGED and score.item_id not in items:
            continue
        place = f"{folder.name} {score.item_id}"
        if score.item_id not in items or score.item_id not in replies:
            faults.append(f"{place}: question or reply is gone")
            continue
        shown = grading(items[score.item_id], replies[score.item_id].text)
        cast = ballots.get(score.item_id, [])
        faults += [f"{place}: {fault}" for fault in _ballot_faults(cast, score, digest_json(to_json(shown)), judges)]
        archive += [_Archived(place, one, shown) for one in cast]
    return archive, faults


def _ballot_faults(
    cast: Sequence[ArchivedVote], score: ItemScore, prompt_hash: str, judges: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong with the votes on one reply."""
    votes = [one.vote for one in cast]
    names = [vote.judge for vote in votes]
    wanted = list(judges[: 3 if needs_third(votes[:2]) else 2])
    if names != wanted:
        yield f"votes of {', '.join(names) or 'nobody'} instead of {', '.join(wanted)}"
        return
    for one in cast:
        if one.prompt_hash != prompt_hash:
            yield f"{one.vote.judge} voted on another text than the archived one"
        if not one.vote.judge_version or (one.vote.score is None) != bool(one.vote.error):
            yield f"the vote of {one.vote.judge} has no version, or neither a score nor an error"
    settles = settled(votes)
    if (settles.score, settles.note) != (score.score, score.note):
        yield f"scored {score.score}, and its votes settle to {settles.score}"


def _several_versions(archive: Iterable[_Archived]) -> Iterator[str]:
    """Yield the judges that changed within the run: their scores do not compare."""
    versions: dict[str, set[str]] = defaultdict(set)
    for one in archive:
        versions[one.cast.vote.judge].add(one.cast.vote.judge_version)
    for judge, found in versions.items():
        if len(found) > 1:
            yield f"{judge} voted in {len(found)} versions: {', '.join(sorted(found))}"


def _cast_again(one: _Archived) -> Iterator[str]:
    """Yield the fault where a rule's vote cannot be repeated, or a model's is not what its reply says."""
    vote = one.cast.vote
    rule = RULES.get(vote.judge)
    if rule is None:
        now = _read_again(vote)
    elif rule.version != vote.judge_version:
        yield f"{one.place}: {vote.judge} is at version {rule.version} now, and voted at {vote.judge_version}"
        return
    else:
        now = rule.grade(one.shown)
    if now != vote.score:
        yield f"{one.place}: {vote.judge} voted {vote.score}, and {now} when asked again"


def _read_again(vote: Vote) -> float | None:
    from iar.services.llm_judge import reread

    return reread(vote.raw)
