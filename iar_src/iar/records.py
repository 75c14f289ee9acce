"""The nouns that cross stages: small frozen records, stored as one JSON object a line."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from iar.errors import PermanentError


@dataclass(frozen=True)
class Document:
    """One source file as text. `id` comes from content and path; `text` is what offsets refer to."""

    id: str
    title: str
    text: str
    source: str
    media_type: str
    source_digest: str


@dataclass(frozen=True)
class SourceFacts:
    """Where a document was got, as it was found there.

    `alias` is the user's own id of it, `collection` the part of the source it belongs to; `place` is a path, URL or
    dataset id with the row, `revision` the dataset's commit or the object's ETag, "" where the bytes' digest says it.
    """

    document_id: str
    alias: str
    collection: str
    place: str
    revision: str
    licence: str
    encoding: str
    language: str
    note: str


@dataclass(frozen=True)
class Chunk:
    """A slice of a document: `document.text[start:end] == text`."""

    id: str
    document_id: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Anchor:
    """A citable object of a chunk; `start` and `end` are offsets in the document's text."""

    chunk_id: str
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class QAPair:
    """A question with its reference answer. `split` is train, validation or test.

    `answer` is what training teaches, in natural prose. `key` holds the words in it that decide
    whether a reply is right, and `aliases` their equivalents; "" = the whole answer decides.
    """

    id: str
    document_id: str
    chunk_id: str
    split: str
    question_type: str
    question: str
    answer: str
    key: str
    aliases: tuple[str, ...]
    anchor: str
    teacher: str


@dataclass(frozen=True)
class CrossDocumentPair(QAPair):
    """A question that needs two chunks, of two documents that share `anchor`; `chunk_id` is the first. Test only."""

    other_document_id: str
    other_chunk_id: str


@dataclass(frozen=True)
class RetainedPair(QAPair):
    """A validation question about an earlier document set, that of the run `run_id`, with which the id begins."""

    run_id: str


RETENTION = "retention"
"""The suite of these questions: what a model retains of the earlier sets."""


@dataclass(frozen=True)
class EarlierSet:
    """A document set that a model had learned before: its run, the SHA-256 of theta_IA then and of the dataset.

    `validation` counts its validation questions.
    """

    run_id: str
    checkpoint_digest: str
    dataset_digest: str
    validation: int


@dataclass(frozen=True)
class RewriteInput:
    """What a rewrite row shows of a document: kind is skeleton, outline or summary."""

    document_id: str
    kind: str
    text: str
    teacher: str


@dataclass(frozen=True)
class Retelling:
    """A text that a teacher wrote from document.text[start:end] and nothing else.

    kind: paraphrase, `about` its register; or relations, `about` the objects whose relation it tells.
    """

    id: str
    document_id: str
    start: int
    end: int
    kind: str
    about: str
    text: str
    teacher: str


@dataclass(frozen=True)
class Reject:
    """An item that was dropped: at which step, why, and against which other item.

    `outcome` is the kind of the drop, one of OUTCOMES; `score` what the rule measured, None where it measures nothing.
    """

    step: str
    item_id: str
    reason: str
    text: str
    counterpart: str = ""
    outcome: str = "filtered"
    score: float | None = None


OUTCOMES = ("filtered", "duplicate", "contaminated", "failed")


@dataclass(frozen=True)
class FunnelStep:
    """in_ == kept + dropped, with the number dropped for each reason, and the same by OUTCOMES."""

    step: str
    unit: str
    in_: int
    kept: int
    dropped: dict[str, int]
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalCheck:
    """One dataset against one evaluation: `hits` of its `items` give away a prompt.

    `digest` is that of the prompts, `checked` how many of them could be compared, `planted` how many leaks were
    planted and found. `unchecked` says why nothing could be checked, "" where it was.
    """

    dataset: str
    evaluation: str
    digest: str
    prompts: int
    checked: int
    items: int
    hits: int
    planted: int
    unchecked: str


@dataclass(frozen=True)
class Example:
    """A training row: the user turn `prompt`, and `target`, the only text the loss falls on."""

    id: str
    objective: str
    source_id: str
    prompt: str
    target: str


@dataclass(frozen=True)
class EvalItem:
    """A question put to a model. `reference` is suite-specific JSON, never shown to the model.

    private: no artifact, log or message may hold its texts, nor those of the replies to it.
    """

    id: str
    suite: str
    prompt: str
    max_new_tokens: int
    reference: dict[str, Any]
    private: bool = False


@dataclass(frozen=True)
class Reply:
    """What a model answered; `truncated` when the token limit ended it."""

    item_id: str
    text: str
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class Vote:
    """One judge's verdict on one reply. `score` is 0, 0.5 or 1; None is a failed vote, with `error`.

    Tokens, `cost` (money at the judge's prices) and `seconds` are of all calls that it took; 0 of a rule.
    """

    model: str
    suite: str
    item_id: str
    judge: str
    judge_version: str
    attempt: int
    score: float | None
    raw: str
    error: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class LabelledAnswer:
    """An answer that a person graded: `label` is 0, 0.5 or 1, `kind` what makes it hard."""

    question: str
    reference: str
    aliases: tuple[str, ...]
    answer: str
    label: float
    kind: str


@dataclass(frozen=True)
class AttackResult:
    """One kind of attack on a verifier: of `asked` replies, none right, `fooled` scored above 0 and `full` of these 1.

    `failed` votes, which have no score, are neither.
    """

    kind: str
    asked: int
    failed: int
    fooled: int
    full: int


@dataclass(frozen=True)
class CalibrationResult:
    """One kind of labelled answers: `exact` got their label; of `right` ones (label 1) and `credited` ones (score 1),
    `both` are both."""

    kind: str
    answers: int
    failed: int
    exact: int
    right: int
    credited: int
    both: int


@dataclass(frozen=True)
class VerifierAudit:
    """What a rule or judge, at a version, made of attacks and of labelled answers; `suite` is the digest of both."""

    verifier: str
    version: str
    suite: str
    attacks: tuple[AttackResult, ...]
    calibration: tuple[CalibrationResult, ...]


@dataclass(frozen=True)
class ItemScore:
    """The settled score of one reply, in [0, 1]; None is unscored. `note` flags how it was settled.

    `instructions`: of IFEval, whether each was followed strictly, and loosely.
    """

    model: str
    suite: str
    item_id: str
    score: float | None
    note: str
    instructions: tuple[tuple[bool, bool], ...] = ()


@dataclass(frozen=True)
class SuiteScore:
    """A suite's mean in points (0-100) with its 95 % bootstrap interval and what it stands on."""

    suite: str
    points: float
    low: float
    high: float
    count: int
    unscored: int
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """A model scored on an evaluation set of `items`, and how many models were by then (`looks`, this one included).

    scorer: the rule that grades replies to it, "judge" where judges vote, "" where an older version looked.
    """

    model: str
    suite: str
    split: str
    set_digest: str
    items: int
    private: bool
    looks: int
    scorer: str = ""


@dataclass(frozen=True)
class Regression:
    """The pick on a non-regression set beside a model before it: the difference in points with its 95 % interval.

    `against`: the model in words, with the digest of its weights; `items` scored in both.
    """

    suite: str
    set_digest: str
    pick: str
    against: str
    weights: str
    points: float
    low: float
    high: float
    items: int

    @property
    def regressed(self) -> bool:
        """Whether the pick is worse beyond chance: the whole interval lies below zero."""
        return self.high < 0

    @property
    def text(self) -> str:
        """The comparison in words."""
        difference = f"{self.points:+.1f} points ({self.low:+.1f} to {self.high:+.1f})"
        return f"{self.suite}: {self.pick} against {self.against} {difference}, paired over {self.items} items"


@dataclass(frozen=True)
class ModelScores:
    """One model on one split. `domain` and `general` are in points; general = mean of the three.

    dataset: digest of the dataset whose questions were asked; "" before the stage that asked has put it down.
    """

    model: str
    split: str
    checkpoint_digest: str
    suites: tuple[SuiteScore, ...]
    domain: float
    general: float
    general_low: float
    general_high: float
    duplicate_of: str = ""
    dataset: str = ""

    def suite(self, name: str) -> SuiteScore:
        """Return the score of suite `name`."""
        return next(score for score in self.suites if score.suite == name)


@dataclass(frozen=True)
class OracleEpoch:
    """The checkpoint at the end of an epoch, `step` optimizer steps into the training.

    loss: mean over all target tokens of the epoch, in nats. oracle: the judge's score of the replies to training
    questions; accuracy: whether these hold the reference answer, by rule.
    """

    epoch: int
    step: int
    checkpoint_digest: str
    loss: float
    oracle: SuiteScore
    accuracy: SuiteScore


@dataclass(frozen=True)
class Divergence:
    """From the end of epoch `since` to the last the oracle's score fell while the training got better.

    Changes: of oracle and accuracy in points over the same `items` prompts, each with its interval at `confidence`; of
    the loss in nats a token.
    """

    since: int
    items: int
    confidence: float
    oracle: float
    oracle_low: float
    oracle_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    loss: float


@dataclass(frozen=True)
class OracleWatch:
    """What the oracle, `judge` at a version, made of a training that gave `model`; `lost` are epochs whose weights were
    lost with the disk of a pod."""

    model: str
    judge: str
    judge_version: str
    epochs: tuple[OracleEpoch, ...]
    divergences: tuple[Divergence, ...]
    lost: tuple[int, ...] = ()

    @property
    def warning(self) -> str:
        """The largest fall in words; "" where nothing diverged."""
        if not self.divergences:
            return ""
        one = min(self.divergences, key=lambda found: found.oracle)
        return (
            f"{self.model}: since epoch {one.since} the score by {self.judge} changed by {one.oracle:+.1f} points "
            f"({one.oracle_low:+.1f} to {one.oracle_high:+.1f}), the training loss by {one.loss:+.3f} and the accuracy "
            f"by {one.accuracy:+.1f} ({one.accuracy_low:+.1f} to {one.accuracy_high:+.1f})"
        )


@dataclass(frozen=True)
class BitsPerByte:
    """How well a model predicts text, in bits a UTF-8 byte: of the documents, and of general text outside them."""

    model: str
    checkpoint_digest: str
    source: float
    general: float
    source_bytes: int
    general_bytes: int


@dataclass(frozen=True)
class Candidate:
    """A merged model as its recipe: operator, the one hyper-parameter, its value, and what came out.

    `layers` are pairs of a part, such as a block range, and its weight, where an operator has them. Distances are in
    units of ||theta_IA - theta_0||; `distance_to_original` is 0 for a duplicate of the same bytes.
    """

    id: str
    operator: str
    parameter: str
    value: float
    seed: int
    digest: str
    changed_share: float
    distance_to_base: float
    distance_to_tuned: float
    duplicate_of: str = ""
    layers: tuple[tuple[str, float], ...] = ()
    distance_to_original: float = 0.0


@dataclass(frozen=True)
class TensorInformation:
    """The Fisher information of one tensor: the mean over its elements of the squared gradient of an example's loss,
    under theta_0 (`base`) on general instructions and under theta_IA (`tuned`) on training questions."""

    tensor: str
    elements: int
    base: float
    tuned: float


@dataclass(frozen=True)
class LayerFacts:
    """A candidate's facts in one transformer block (`axis` block, `group` its number or "outside") or in one kind of
    tensor (`axis` kind, `group` such as mlp.up_proj). Distances are in units of that part's ||theta_IA - theta_0||."""

    candidate: str
    axis: str
    group: str
    elements: int
    changed_share: float
    distance_to_base: float
    distance_to_tuned: float


@dataclass(frozen=True)
class DeltaFacts:
    """The changes of several document sets, oldest first, in a part of the model: `group` is "model", "outside" or the
    number of a block. `norms` are ||Delta_k||, `cosines` those of the pairs (1, 2), (1, 3), (2, 3), ...; 0 where a
    norm is.
    """

    group: str
    elements: int
    norms: tuple[float, ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True)
class Baseline:
    """A control or baseline as it was made: its recipe, the tokens seen and trained on, and facts of its own."""

    recipe: str
    tokens: int
    target_tokens: int
    facts: dict[str, float]


@dataclass(frozen=True)
class CandidateVerdict:
    """What the selection rule said of one candidate at each of its four steps; "" where not reached."""

    candidate: str
    domain_floor: str
    general_floor: str
    dominance: str
    final: str
    kept_until: int


@dataclass(frozen=True)
class PruningLoss:
    """What the rule picks among the `kept` best by BPB, and how many points less it has than the pick of all.

    None where one of the two picks is none.
    """

    kept: int
    pick: str
    domain_lost: float | None
    general_lost: float | None


@dataclass(frozen=True)
class PickStability:
    """How often the rule picks each candidate, and none, on resampled validation items: shares of `resamples`."""

    resamples: int
    wins: dict[str, float]
    none_feasible: float


@dataclass(frozen=True)
class Selection:
    """The pick and the reasons. `pick` is "" when no candidate is feasible.

    `preference` and `floors` (least points by metric) are as in select; "domain" and {} are the rule of the method.
    """

    pick: str
    rule: str
    tolerance_points: float
    verdicts: tuple[CandidateVerdict, ...]
    dataset_digest: str
    candidate_digest: str
    preference: str = "domain"
    floors: dict[str, float] = field(default_factory=dict)
    stability: PickStability = PickStability(0, {}, 0.0)

    @property
    def wish(self) -> str:
        """What was preferred over the rule of the method, in words; "" where it is that rule."""
        least = [f"{metric} at least {points:g}" for metric, points in self.floors.items()]
        return ", ".join([f"preference {self.preference}"] * (self.preference != "domain") + least)


@dataclass(frozen=True)
class TestReading:
    """One opening of the held-out test, of `questions` questions, for the weights of a pick.

    `earlier_reads` were before it, of this test or of one that shares questions; `other_picks` are those of them
    for other weights, and had seen `seen_before` of the questions.
    """

    __test__ = False  # no test class, whatever its name says to pytest

    pick: str
    candidate_digest: str
    decision: str
    questions: int
    earlier_reads: int
    other_picks: tuple[str, ...]
    seen_before: int

    @property
    def mark(self) -> str:
        """What every place that shows a score of this test must say; "" where no other model took it before."""
        if not self.other_picks:
            return ""
        models = f"{len(self.other_picks)} other model{'s' * (len(self.other_picks) > 1)}"
        some = ", ".join(self.other_picks[:3]) + ", ..." * (len(self.other_picks) > 3)
        return f"{self.seen_before} of {self.questions} questions taken before by {models} ({some})"


@dataclass(frozen=True)
class Lineage:
    """A registry entry: what was made (`kind`, `digest`), and from what (role, digest) it was made."""

    kind: str
    digest: str
    name: str
    payload: dict[str, Any]
    inputs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a stage reports beside its files: numbers and a text for the UI, entries for the registry."""

    metrics: dict[str, float]
    markdown: str
    lineage: tuple[Lineage, ...] = ()


Record = TypeVar("Record")


def to_json(record: Any) -> dict[str, Any]:
    """Return a record as plain JSON data."""
    return dataclasses.asdict(record)


@functools.cache
def _hints(record_type: Any) -> dict[str, Any]:
    import typing

    return typing.get_type_hints(record_type)


def from_json(record_type: type[Record], data: dict[str, Any]) -> Record:
    """Build a record from JSON data; nested records and tuples are rebuilt from the annotations."""
    import typing

    hints = _hints(typing.cast(typing.Hashable, record_type))
    values: dict[str, Any] = {}
    for name, value in data.items():
        hint = hints[name]
        if typing.get_origin(hint) is tuple and isinstance(value, list):
            inner = typing.get_args(hint)[0]
            if dataclasses.is_dataclass(inner):
                value = tuple(from_json(typing.cast(type, inner), item) for item in value)
            else:
                value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
            value = from_json(typing.cast(type, hint), value)
        values[name] = value
    return record_type(**values)


class RecordWriter:
    """Writes records as JSON lines, aside; the file appears whole when the block ends. `count` is their number."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._path, self._part = path, path.with_suffix(path.suffix + ".part")
        self._file = self._part.open("w", encoding="utf-8")

    def write(self, records: Iterable[Any]) -> None:
        """Append records."""
        for record in records:
            self._file.write(json.dumps(to_json(record), ensure_ascii=False) + "\n")
            self.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        if kind is None:
            self._part.replace(self._path)


def write_records(path: Path, records: Iterable[Any]) -> int:
    """Write records as JSON lines, aside and then renamed; return their number."""
    with RecordWriter(path) as writer:
        writer.write(records)
    return writer.count


def read_records(path: Path, record_type: type[Record]) -> Iterator[Record]:
    """Read JSON lines as records, in order. Raises PermanentError naming a line that is no record."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield from_json(record_type, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise PermanentError(f"{path}:{number}: not a {record_type.__name__}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, aside and then renamed."""
    part = path.with_suffix(path.suffix + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
