"""From a checkpoint to its scores: replies, votes, item scores, then means with intervals.

Each model has a folder of its own; `scores.json` is written last and means: this model is done.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from iar.config import RunFile
from iar.errors import PermanentError, TemporaryError, UserError
from iar.methods.bootstrap import mean_interval, mean_of_means_interval
from iar.methods.ifeval import check_reply
from iar.methods.mmlu import find_letter
from iar.methods.suite_grading import PATTERN_SECONDS, TOO_SLOW, UNPARSED
from iar.records import (
    BitsPerByte,
    EvalItem,
    ItemScore,
    ModelScores,
    Reply,
    SuiteScore,
    from_json,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.bpb import BPB, BpbTexts, Reader, measure_bpb, read_bpb
from iar.services.engines import OpenEngine, ReplyEngine
from iar.services.evaluations import GENERAL
from iar.services.further_suites import grade_further
from iar.services.judges import ArchivedVote, Judge, Judged, read_votes, vote, write_votes
from iar.services.replies import complete_replies
from iar.services.score_breakdown import breakdown
from iar.services.subjects import Subject
from iar.services.suites import CROSS, SUITES, is_judged
from iar.services.vault import Vault

REPLIES, VOTES, ITEMS, SCORES = "replies.jsonl", "votes.parquet", "items.jsonl", "scores.json"
JUDGED_ITEMS, BREAKDOWN = "judged-items.jsonl", "breakdown.json"
LOOSE_ONLY = "loose only"
OWN_SUITES = ("domain", CROSS)
"""Asked of each split anew; all others are the same on validation and test."""


@dataclass(frozen=True)
class Examination:
    """What every model of a stage is asked, by which engine, and how it is judged: items by suite, their split.

    `texts`: what its bits per byte are measured on where the engine can, None where they are not.
    `vault`: where texts of private suites go, if there are any.
    """

    run_file: RunFile
    split: str
    suites: Mapping[str, Sequence[EvalItem]]
    judges: Sequence[Judge]
    open_engine: OpenEngine
    texts: BpbTexts | None = None
    vault: Vault | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The suites in the order of the scores: those that count, then those that are shown beside them."""
        return (*SUITES, *(name for name in self.suites if name not in SUITES))

    @property
    def items(self) -> list[EvalItem]:
        """All items, in the order of the suites."""
        return [item for name in self.names for item in self.suites[name]]

    @property
    def open_items(self) -> list[EvalItem]:
        """Those of suites that are not private."""
        return [item for item in self.items if not item.private]

    @property
    def private_suites(self) -> list[Sequence[EvalItem]]:
        """The items of each private suite."""
        return [items for items in self.suites.values() if items and items[0].private]

    @property
    def judged_items(self) -> list[EvalItem]:
        """The items whose replies judges vote on in the open, in the order of the suites."""
        return [item for item in self.open_items if is_judged(item)]


@dataclass(frozen=True)
class Earlier:
    """What is known of the same weights from an earlier examination; generation and rules repeat themselves."""

    replies: tuple[Reply, ...] = ()
    votes: tuple[ArchivedVote, ...] = ()
    bpb: BitsPerByte | None = None


def score_all(
    subjects: Sequence[Subject],
    examination: Examination,
    out: Path,
    update: Callable[[float, float, str], None],
    earlier: Mapping[str, Earlier] | None = None,
) -> list[ModelScores]:
    """Examine models one after the other, each in its folder under `out`; `update(done, all, model)` counts models.

    What the judges are asked about is kept beside them: a suite's file may change, or not be where the votes are read.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_records(out / JUDGED_ITEMS, examination.judged_items)
    scores = []
    for number, subject in enumerate(subjects):
        known = (earlier or {}).get(subject.model)
        report = _fraction_of(update, subject.model, number, len(subjects))
        scores.append(score_model(subject, examination, out / subject.model, known, report))
        update(number + 1, len(subjects), subject.model)
    return scores


def _fraction_of(
    update: Callable[[float, float, str], None], model: str, number: int, count: int
) -> Callable[[int, int], None]:
    """Report the replies of the running model as a part of it."""
    return lambda done, total: update(number + 0.99 * done / total, count, model)


def score_model(
    subject: Subject,
    examination: Examination,
    folder: Path,
    earlier: Earlier | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ModelScores:
    """Examine one model and return its scores; files go to `folder`, work found there is not repeated.

    Raises TemporaryError where no reply of a suite got a score, UserError where the patterns of a suite ask too much.
    """
    if (folder / SCORES).is_file():
        return read_scores(folder, subject)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = earlier or Earlier()

    @functools.cache
    def engine() -> ReplyEngine:
        return examination.open_engine(subject)

    if examination.texts:
        keep_bpb(folder, subject, earlier.bpb, engine, examination.texts)
    replies = complete_replies(folder / REPLIES, examination.open_items, engine, earlier.replies, on_progress)
    verdicts = vote(subject.model, examination.judged_items, replies, examination.judges, earlier.votes)
    write_votes(folder / VOTES, verdicts.votes)
    settled = dict(verdicts.settled)
    for suite in examination.private_suites:
        assert examination.vault
        judged = [item for item in suite if is_judged(item)]
        told, decided = examination.vault.examine(subject, suite, judged, engine, on_progress)
        replies |= told
        settled |= decided

    items = [item_score(subject.model, item, replies[item.id], settled) for item in examination.items]
    write_records(folder / ITEMS, items)
    settings, seed = examination.run_file.evaluate, examination.run_file.run.seed
    write_json(folder / BREAKDOWN, breakdown(examination.items, items, settings.resamples, seed))
    known = {reply.item_id for reply in earlier.replies}
    scores = _model_scores(subject, examination, items, replies, settled, known)
    write_json(folder / SCORES, to_json(scores))
    return scores


def keep_bpb(
    folder: Path, subject: Subject, known: BitsPerByte | None, engine: Callable[[], ReplyEngine], texts: BpbTexts
) -> None:
    """Write the bits per byte of a model, once, where they are known or its engine can say them; a server cannot."""
    if read_bpb(folder, subject.digest):
        return
    if not known and isinstance(reader := engine(), Reader):
        known = measure_bpb(subject.model, subject.digest, reader, texts)
    if known:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / BPB, to_json(known))


def item_score(model: str, item: EvalItem, reply: Reply, settled: Mapping[str, Judged]) -> ItemScore:
    """Return the score of one reply: by the panel for judged suites, checked directly for the others."""
    if is_judged(item):
        return ItemScore(model, item.suite, item.id, settled[item.id].score, settled[item.id].note)
    if item.suite not in SUITES:
        return ItemScore(model, item.suite, item.id, *grade_further(item, reply))
    if item.suite == "mmlu":
        letter = find_letter(reply.text, item.reference["choices"])
        score = float(letter == item.reference["answer"])
        return ItemScore(model, item.suite, item.id, score, "" if letter else UNPARSED)
    reference = item.reference
    followed = check_reply(item.prompt, reference["instruction_ids"], reference["kwargs"], reply.text)
    note = LOOSE_ONLY if followed.loose and not followed.strict else ""
    each = tuple(zip(followed.each_strict, followed.each_loose, strict=True))
    return ItemScore(model, item.suite, item.id, float(followed.strict), note, each)


def _model_scores(
    subject: Subject,
    examination: Examination,
    items: Sequence[ItemScore],
    replies: Mapping[str, Reply],
    settled: Mapping[str, Judged],
    known: set[str],
) -> ModelScores:
    resamples, seed = examination.run_file.evaluate.resamples, examination.run_file.run.seed
    suites, points = [], {}
    for name in examination.names:
        scores = [item for item in items if item.suite == name]
        points[name] = _points(name, scores)
        mean, low, high = mean_interval(points[name], resamples, seed)
        unscored = len(scores) - len(points[name])
        details = _details(name, scores, replies, settled, known)
        suites.append(SuiteScore(name, mean, low, high, len(scores), unscored, details))
    general, low, high = mean_of_means_interval([points[name] for name in GENERAL], resamples, seed)
    return ModelScores(
        subject.model, examination.split, subject.digest, tuple(suites), suites[0].points, general, low, high
    )


def _points(suite: str, scores: Sequence[ItemScore]) -> list[float]:
    points = [100 * item.score for item in scores if item.score is not None]
    if not points and all(item.note == TOO_SLOW for item in scores):
        raise UserError(
            f"{suite}: the patterns of all {len(scores)} items took over {PATTERN_SECONDS:g} s on the replies of "
            f"{scores[0].model}; write patterns that do not backtrack"
        )
    if not points:
        raise TemporaryError(
            f"{suite}: no reply of {scores[0].model} got two valid votes of {len(scores)}; look at the errors in "
            f"{VOTES}, check the judges' servers and run again"
        )
    return points


def _details(
    suite: str,
    scores: Sequence[ItemScore],
    replies: Mapping[str, Reply],
    settled: Mapping[str, Judged],
    known: set[str],
) -> dict[str, float]:
    """Return shares between 0 and 1 of all items of a suite; the strict one of those with a score, as points are."""

    def share(flags: Iterable[bool]) -> float:
        return sum(flags) / len(scores)

    details = {
        "strict_share": fmean(item.score == 1 for item in scores if item.score is not None),
        "truncated_share": share(replies[item.item_id].truncated for item in scores),
        "reused_share": share(item.item_id in known for item in scores),
    }
    if scores[0].item_id in settled:
        details["third_judge_rate"] = share(settled[item.item_id].third for item in scores)
        details["flagged_share"] = share(item.note != "" for item in scores)
    elif suite == "ifeval":
        details["loose_share"] = share(item.score == 1 or item.note == LOOSE_ONLY for item in scores)
        each = [one for item in scores for one in item.instructions]
        details["instruction_strict_share"] = sum(strict for strict, _ in each) / len(each)
        details["instruction_loose_share"] = sum(loose for _, loose in each) / len(each)
    else:
        details["unparsed_share"] = share(item.note == UNPARSED for item in scores)
    # In the order they are stored, so that scores read back write the same bytes.
    return dict(sorted(details.items()))


def read_scores(folder: Path, subject: Subject) -> ModelScores:
    """Return finished scores. Raises PermanentError where they are of other weights."""
    scores = from_json(ModelScores, json.loads((folder / SCORES).read_text(encoding="utf-8")))
    if scores.checkpoint_digest != subject.digest:
        raise PermanentError(
            f"{folder / SCORES}: scores of weights {scores.checkpoint_digest[:12]}, but {subject.model} is "
            f"{subject.digest[:12]} now; delete the folder"
        )
    return scores


def general_results(subject: Subject, folders: Iterable[Path]) -> Earlier:
    """Return replies and votes of all but our own questions from the first folder with scores of the same weights."""
    for folder in folders:
        finished = folder / subject.model / SCORES
        if not finished.is_file():
            continue
        scores = from_json(ModelScores, json.loads(finished.read_text(encoding="utf-8")))
        if scores.checkpoint_digest != subject.digest or scores.duplicate_of:
            continue
        items = read_records(finished.parent / ITEMS, ItemScore)
        general = {item.item_id for item in items if item.suite not in OWN_SUITES}
        replies = [reply for reply in read_records(finished.parent / REPLIES, Reply) if reply.item_id in general]
        votes = [one for one in read_votes(finished.parent / VOTES) if one.vote.suite not in OWN_SUITES]
        return Earlier(tuple(replies), tuple(votes))
    return Earlier()
