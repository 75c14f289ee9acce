"""The oracle channel: the checkpoint of each epoch answers training questions, a judge outside it scores them.

OUT/oracle/training.json     what the training reported: a killed stage does not train again
           verifiers.jsonl   the audit of the judge, before anything is trained
           epoch-001/        replies.jsonl, votes.parquet, items.jsonl; epoch.json is written last: this epoch is done
           oracle.json       all epochs, and where score and training diverge

Nothing here is part of the artifact's content: what is made of the weights is the same with it and without it.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import TemporaryError
from iar.methods.bootstrap import mean_interval
from iar.methods.digest import digest_json
from iar.methods.divergence import EpochPoints, divergences
from iar.methods.grading import RULES
from iar.methods.inert_markdown import inert
from iar.records import (
    EvalItem,
    ItemScore,
    Lineage,
    OracleEpoch,
    OracleWatch,
    Outcome,
    QAPair,
    Reply,
    SuiteScore,
    VerifierAudit,
    Vote,
    from_json,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.checkpoints import recorded_digest
from iar.services.engines import OpenEngine, engine_opener
from iar.services.epoch_weights import EPOCHS, epoch_folder
from iar.services.judges import ArchivedVote, Judge, grading, open_judge, write_votes
from iar.services.replies import complete_replies
from iar.services.scoring import ITEMS, REPLIES, VOTES
from iar.services.subjects import Subject
from iar.services.suites import domain_items
from iar.services.telemetry import StepLog, TrainingResult
from iar.services.verifiers import VERIFIERS, admit, audit_entry, audit_panel
from iar.services.workspace import ORACLE, ORACLE_RECORD, STEPS, Context

TRAINED, EPOCH = "training.json", "epoch.json"
CHANNEL, ACCURACY = "oracle", "rule:exact"


@dataclass(frozen=True)
class Oracle:
    """What watches one training under `out`: the audited judge, the questions, and what makes checkpoints answer."""

    run_file: RunFile
    out: Path
    items: tuple[EvalItem, ...]
    judge: Judge
    audit: VerifierAudit
    open_engine: OpenEngine
    update: Callable[[float, float, str], None]

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return self.out / ORACLE

    def trained(self, train: Callable[[], TrainingResult]) -> TrainingResult:
        """Return what the training reports, made now or by an earlier try that was killed after it."""
        path = self.folder / TRAINED
        if path.is_file():
            return from_json(TrainingResult, json.loads(path.read_text(encoding="utf-8")))
        result = train()
        write_json(path, to_json(result))
        return result

    def reported(self, model: str, outcome: Outcome) -> Outcome:
        """Score every epoch that is not scored yet; return the training's outcome with what the oracle found in it."""
        steps = StepLog(self.out / STEPS).read()
        weights = self._weights(max(step["epoch"] for step in steps))
        there = [epoch for epoch, folder in weights.items() if self._is_scored(epoch) or folder.is_dir()]
        epochs = [self._epoch(model, epoch, weights[epoch], steps) for epoch in there]
        shutil.rmtree(self.out / EPOCHS, ignore_errors=True)
        settings = self.run_file.evaluate.resamples, self.run_file.run.seed
        found = divergences([self._points(one) for one in epochs], *settings)
        lost = tuple(epoch for epoch in weights if epoch not in there)
        watch = OracleWatch(model, self.judge.name, self.judge.version, tuple(epochs), tuple(found), lost)
        write_json(self.out / ORACLE_RECORD, to_json(watch))
        return _added(outcome, watch, self.audit)

    def _weights(self, last: int) -> dict[int, Path]:
        """Return the checkpoint folder of each epoch; the last is what the training made."""
        return {epoch: epoch_folder(self.out, epoch) for epoch in range(1, last)} | {last: self.out / "checkpoint"}

    def _place(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:03d}"

    def _is_scored(self, epoch: int) -> bool:
        return (self._place(epoch) / EPOCH).is_file()

    def _epoch(self, model: str, epoch: int, checkpoint: Path, steps: Sequence[dict[str, Any]]) -> OracleEpoch:
        """Return the scores of one epoch; its weights go as soon as these are written."""
        place = self._place(epoch)
        if not self._is_scored(epoch):
            place.mkdir(parents=True, exist_ok=True)
            subject = Subject(f"{model}-epoch-{epoch}", checkpoint, recorded_digest(checkpoint))
            oracle, accuracy = self._score(subject, place, epoch)
            loss, step = epoch_loss(steps, epoch)
            write_json(place / EPOCH, to_json(OracleEpoch(epoch, step, subject.digest, loss, oracle, accuracy)))
        shutil.rmtree(epoch_folder(self.out, epoch), ignore_errors=True)
        return from_json(OracleEpoch, json.loads((place / EPOCH).read_text(encoding="utf-8")))

    def _score(self, subject: Subject, place: Path, epoch: int) -> tuple[SuiteScore, SuiteScore]:
        def report(done: int, total: int) -> None:
            self.update(done, total, f"oracle, epoch {epoch}")

        replies = complete_replies(place / REPLIES, self.items, lambda: self.open_engine(subject), (), report)
        verdicts = self._verdicts(subject, replies)
        write_votes(place / VOTES, verdicts)
        scores = [one.vote.score for one in verdicts]
        if all(score is None for score in scores):
            raise TemporaryError(
                f"oracle: no reply of epoch {epoch} got a valid vote of {self.judge.name}; look at the errors in "
                f"{place / VOTES}, check the judge's server and run again"
            )
        exact = [RULES[ACCURACY].grade(grading(item, replies[item.id].text)) for item in self.items]
        channels = ((CHANNEL, scores), (ACCURACY, exact))
        rows = [
            ItemScore(subject.model, channel, item.id, score, "")
            for channel, found in channels
            for item, score in zip(self.items, found, strict=True)
        ]
        write_records(place / ITEMS, rows)
        oracle, accuracy = (self._mean(channel, rows) for channel, _ in channels)
        return oracle, accuracy

    def _verdicts(self, subject: Subject, replies: dict[str, Reply]) -> list[ArchivedVote]:
        shown = [grading(item, replies[item.id].text) for item in self.items]
        return [
            ArchivedVote(
                Vote(subject.model, item.suite, item.id, self.judge.name, self.judge.version, 1, **vars(judgement)),
                digest_json(to_json(one)),
            )
            for item, one, judgement in zip(self.items, shown, self.judge.judge_many(shown), strict=True)
        ]

    def _mean(self, channel: str, rows: Iterable[ItemScore]) -> SuiteScore:
        points = [100 * row.score for row in rows if row.suite == channel and row.score is not None]
        interval = mean_interval(points, self.run_file.evaluate.resamples, self.run_file.run.seed)
        return SuiteScore(channel, *interval, len(self.items), len(self.items) - len(points))

    def _points(self, one: OracleEpoch) -> EpochPoints:
        rows = list(read_records(self._place(one.epoch) / ITEMS, ItemScore))
        oracle, accuracy = (
            {row.item_id: 100 * row.score for row in rows if row.suite == channel and row.score is not None}
            for channel in (CHANNEL, ACCURACY)
        )
        return EpochPoints(one.epoch, one.loss, oracle, accuracy)


def open_oracle(run_file: RunFile, stage: str, data: Path, out: Path, context: Context) -> Oracle | None:
    """Return the oracle of a training under `out`, None where the run file asks for none.

    Raises UserError before anything is trained where its judge falls for more attacks than the run file allows.
    """
    entry = run_file.oracle.judge
    if entry is None or not run_file.oracle.watches(stage):
        return None
    pairs = list(read_records(data / "train.jsonl", QAPair))
    chosen = random.Random(context.seed).sample(range(len(pairs)), min(run_file.oracle.prompts, len(pairs)))
    items = tuple(domain_items([pairs[place] for place in sorted(chosen)], run_file))
    cache = context.state / "llm-cache"
    judge = open_judge(entry, run_file, cache, "oracle.judge")
    (audit,) = audits = audit_panel([judge], items, context.seed, context.progress.update)
    (out / ORACLE).mkdir(parents=True, exist_ok=True)
    write_records(out / ORACLE / VERIFIERS, audits)
    admit(audits, run_file.evaluate.max_attack_success, "oracle.judge")
    opener = engine_opener(run_file, cache)
    return Oracle(run_file, out, items, judge, audit, opener, context.progress.update)


def epoch_loss(steps: Sequence[dict[str, Any]], epoch: int) -> tuple[float, int]:
    """Return the mean loss over all target tokens of an epoch, in nats, and the number of its last step."""
    own = [step for step in steps if step["epoch"] == epoch]
    tokens = sum(step["target_tokens"] for step in own)
    return sum(step["token_loss"] * step["target_tokens"] for step in own) / tokens, int(own[-1]["step"])


def _added(outcome: Outcome, watch: OracleWatch, audit: VerifierAudit) -> Outcome:
    """Return the outcome with the oracle's metrics, a line an epoch, the warning, and the entries of the registry."""
    metrics = {"oracle_diverged": float(bool(watch.divergences))}
    for one in watch.epochs:
        metrics |= {f"oracle/epoch-{one.epoch}": one.oracle.points, f"accuracy/epoch-{one.epoch}": one.accuracy.points}
    rows = [f"| {one.epoch} | {one.loss:.3f} | {_cell(one.accuracy)} | {_cell(one.oracle)} |" for one in watch.epochs]
    table = [f"| epoch | loss | accuracy | oracle {inert(watch.judge)} |", "| --- | ---: | ---: | ---: |", *rows]
    lost = (
        [f"The weights of epochs {', '.join(map(str, watch.lost))} were lost with a pod's disk."] if watch.lost else []
    )
    warning = [f"**The oracle diverges**: {inert(watch.warning)}."] if watch.warning else []
    payload, verifier = to_json(watch), audit_entry(audit)
    inputs = (("evaluated", watch.epochs[-1].checkpoint_digest), ("judged-by", verifier.digest))
    entry = Lineage("scores", digest_json(payload), f"{watch.model} by its oracle, each epoch", payload, inputs)
    return replace(
        outcome,
        metrics=outcome.metrics | metrics,
        markdown="\n\n".join([outcome.markdown, *warning, "\n".join(table), *lost]),
        lineage=(*outcome.lineage, verifier, entry),
    )


def _cell(score: SuiteScore) -> str:
    return f"{score.points:.1f} ({score.low:.1f}-{score.high:.1f})"
