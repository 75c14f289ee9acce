"""Diagnostics of the pick beside theta_0, after the test is open: what the scores alone do not say."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from iar.config import RunFile
from iar.methods.bootstrap import mean_interval
from iar.methods.textnorm import count_words
from iar.records import EvalItem, ItemScore, ModelScores, QAPair, Reply, to_json, write_json, write_records
from iar.services.diagnostic_items import NAMED, REFUSED, diagnostic_items
from iar.services.engine_prompts import Prompts
from iar.services.judges import vote, write_votes
from iar.services.replies import complete_replies
from iar.services.scoring import ITEMS, REPLIES, VOTES, Examination, item_score
from iar.services.subjects import Subject
from iar.services.suites import is_judged

FOLDER, FILE = "diagnostics", "diagnostics.json"


def diagnose(
    subjects: Sequence[Subject],
    examination: Examination,
    data: Path,
    pairs: Sequence[QAPair],
    unseen: Sequence[tuple[str, str]],
    scores: Sequence[ModelScores],
    out: Path,
    cache_folder: Path,
    update: Callable[[float, float, str], None],
) -> None:
    """Examine the pick and theta_0, `subjects`, and write `diagnostics.json` with their replies beside it.

    `unseen` is title and text of documents not trained on, `scores` are those of the locked test. A killed stage goes
    on with the replies that are left.
    """
    run_file = examination.run_file
    prompts = Prompts.of(subjects[0].checkpoint, run_file.model.system_turn)
    items = diagnostic_items(run_file, data, pairs, unseen, prompts, cache_folder)
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_records(out / FOLDER / ITEMS, items)
    models = {}
    for number, subject in enumerate(subjects):
        models[subject.model] = _examine(subject, examination, items, out / FOLDER / subject.model)
        update(number + 1, len(subjects), f"diagnostics of {subject.model}")
    domain = {one.model: to_json(one.suite("domain")) for one in scores if one.model in models}
    for model, found in models.items():
        found["scores"]["closed_book"] = {name: domain[model][name] for name in ("points", "low", "high", "count")}
    write_json(out / FILE, {"models": models})


def _examine(subject: Subject, examination: Examination, items: Sequence[EvalItem], folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    replies = complete_replies(folder / REPLIES, items, lambda: examination.open_engine(subject))
    verdicts = vote(subject.model, [_as_asked(item) for item in items if is_judged(item)], replies, examination.judges)
    write_votes(folder / VOTES, verdicts.votes)
    scored = [item_score(subject.model, item, replies[item.id], verdicts.settled) for item in items]
    write_records(folder / ITEMS, scored)
    return {
        "scores": _points(scored, examination.run_file),
        "harmless_words": fmean(count_words(replies[item.id].text) for item in items if item.suite == REFUSED),
        "identity": [[item.prompt, replies[item.id].text] for item in items if item.suite == NAMED],
        "truncated": _truncated(items, replies),
    }


def _as_asked(item: EvalItem) -> EvalItem:
    """Return the item as judges see it: with the question itself, without passages or another wording."""
    return EvalItem(item.id, item.suite, item.reference["asked"], item.max_new_tokens, item.reference)


def _points(scored: Sequence[ItemScore], run_file: RunFile) -> dict[str, dict[str, float]]:
    """Return points, interval and count of each suite with any score; the replies about identity have none."""
    found = {}
    for suite in dict.fromkeys(one.suite for one in scored if one.suite != NAMED):
        points = [100 * one.score for one in scored if one.suite == suite and one.score is not None]
        if points:
            mean, low, high = mean_interval(points, run_file.evaluate.resamples, run_file.run.seed)
            found[suite] = {"points": mean, "low": low, "high": high, "count": len(points)}
    return found


def _truncated(items: Sequence[EvalItem], replies: Mapping[str, Reply]) -> dict[str, float]:
    """Return the share of replies that the token limit ended, by suite."""
    return {
        suite: fmean(replies[item.id].truncated for item in items if item.suite == suite)
        for suite in dict.fromkeys(item.suite for item in items)
    }
