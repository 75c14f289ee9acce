"""The judge panel at work: two judges on every reply, the third where needed, each vote archived."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from iar.config import Endpoint, RunFile
from iar.errors import PermanentError, UserError
from iar.methods.digest import digest_json
from iar.methods.grading import RULES, Grading, Rule
from iar.methods.panel import needs_third, settle
from iar.records import EvalItem, Reply, Vote, to_json

PROMPT_HASH = "prompt_hash"
_GENERIC_WORDS = frozenset(("base", "chat", "instruct", "large", "mini", "model", "small", "the"))


@dataclass(frozen=True)
class Judgement:
    """What a judge made of one reply, as a `Vote` keeps it: a failed one has score None and an error."""

    score: float | None
    raw: str
    error: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class Judge(Protocol):
    """Grades replies."""

    name: str
    version: str

    def judge_many(
        self, gradings: Sequence[Grading], on_progress: Callable[[int, int], None] | None = None
    ) -> list[Judgement]:
        """Return one judgement a grading, in order."""
        ...


class RuleJudge:
    """A rule verifier as a judge."""

    def __init__(self, rule: Rule) -> None:
        self.name, self.version = rule.name, rule.version
        self._grade = rule.grade

    def judge_many(
        self, gradings: Sequence[Grading], on_progress: Callable[[int, int], None] | None = None
    ) -> list[Judgement]:
        """Return the rule's score of each grading; rules never fail."""
        return [Judgement(self._grade(grading), "", "") for grading in gradings]


@dataclass(frozen=True)
class ArchivedVote:
    """A vote with the SHA-256 of what the judge was shown: question, reply, reference."""

    vote: Vote
    prompt_hash: str


@dataclass(frozen=True)
class Judged:
    """A settled reply: the score or None, a flag, and whether the third judge was called."""

    score: float | None
    note: str
    third: bool


@dataclass(frozen=True)
class Verdicts:
    """All votes of a model, in the order of items and judges, and what they settle to by item id."""

    votes: list[ArchivedVote]
    settled: dict[str, Judged]


def judge_names(run_file: RunFile) -> list[str]:
    """Return the panel's judges in the order they are called."""
    return [judge.name if isinstance(judge, Endpoint) else judge for judge in run_file.evaluate.judges]


def open_judges(run_file: RunFile, cache_folder: Path, books: Path | None = None) -> list[Judge]:
    """Return the three judges of the run file; what they buy is counted in `books`, where that is another cache.

    Raises UserError for a judge of the model's own family unless evaluate.allow_same_family.
    """
    return [open_judge(entry, run_file, cache_folder, books=books) for entry in run_file.evaluate.judges]


def open_judge(
    entry: str | Endpoint,
    run_file: RunFile,
    cache_folder: Path,
    key: str = "evaluate.judges",
    books: Path | None = None,
) -> Judge:
    """Return the judge that stands under `key`. Raises UserError as `open_judges` does."""
    if isinstance(entry, str):
        return RuleJudge(RULES[entry])
    if not run_file.evaluate.allow_same_family and same_family(entry.model, run_file.model.source):
        raise UserError(
            f"{key}: {entry.name} ({entry.model}) is of the family of {run_file.model.source}: models "
            "prefer their own kind; take another judge or set evaluate.allow_same_family: true"
        )
    from iar.services.llm_judge import LlmJudge

    return LlmJudge(entry, cache_folder, books=books)


def same_family(model: str, other: str) -> bool:
    """Tell by name whether two models share a family: the first word of one occurs in the other."""
    first, second = _words(model), _words(other)
    return bool(first and second) and (first[0] in second or second[0] in first)


def _words(model: str) -> list[str]:
    words = re.findall(r"[a-z]{2,}", model.rstrip("/").rsplit("/", 1)[-1].lower())
    return [word for word in words if word not in _GENERIC_WORDS]


def vote(
    model: str,
    items: Sequence[EvalItem],
    replies: Mapping[str, Reply],
    judges: Sequence[Judge],
    known: Iterable[ArchivedVote] = (),
) -> Verdicts:
    """Let the panel judge the replies of one model; a valid vote in `known` on the same text is not asked again."""
    bought = {_identity(one): one.vote for one in known if one.vote.score is not None}
    first, second, third = judges
    ballots: dict[str, list[ArchivedVote]] = {item.id: [] for item in items}
    for judge in (first, second):
        _cast(model, items, replies, judge, bought, ballots)
    disputed = [item for item in items if needs_third([ballot.vote for ballot in ballots[item.id]])]
    _cast(model, disputed, replies, third, bought, ballots)
    return Verdicts(
        votes=[ballot for item in items for ballot in ballots[item.id]],
        settled={item.id: settled([ballot.vote for ballot in ballots[item.id]]) for item in items},
    )


def settled(votes: Sequence[Vote]) -> Judged:
    """Return what the votes on one reply come to: those of the first two judges, then perhaps the third's."""
    score, note = settle(votes[:2], votes[2] if len(votes) > 2 else None)
    return Judged(score, note, third=len(votes) > 2)


def _cast(
    model: str,
    items: Sequence[EvalItem],
    replies: Mapping[str, Reply],
    judge: Judge,
    bought: Mapping[tuple[str, str, str], Vote],
    ballots: dict[str, list[ArchivedVote]],
) -> None:
    """Append the votes of one judge to the ballots of `items`."""
    gradings = {item.id: grading(item, replies[item.id].text) for item in items}
    hashes = {key: digest_json(to_json(one)) for key, one in gradings.items()}
    votes = {key: bought.get((judge.name, judge.version, digest)) for key, digest in hashes.items()}
    open_ids = [key for key, one in votes.items() if one is None]
    judgements = dict(zip(open_ids, judge.judge_many([gradings[key] for key in open_ids]), strict=True))
    for item in items:
        known = votes[item.id]
        if known:
            made = replace(known, model=model, suite=item.suite, item_id=item.id)
        else:
            made = Vote(model, item.suite, item.id, judge.name, judge.version, 1, **vars(judgements[item.id]))
        ballots[item.id].append(ArchivedVote(made, hashes[item.id]))


def grading(item: EvalItem, reply: str) -> Grading:
    """Return what a judge is shown of a reply to an item of a judged suite."""
    reference = item.reference
    return Grading(
        question=item.prompt,
        reply=reply,
        reference=reference["reference"],
        aliases=tuple(reference.get("aliases", ())),
        points=tuple(reference.get("points", ())),
    )


def write_votes(path: Path, votes: Sequence[ArchivedVote]) -> None:
    """Archive votes as Parquet, one column a field and `prompt_hash`; aside, then renamed."""
    import pyarrow
    import pyarrow.parquet

    texts = ("model", "suite", "item_id", "judge", "judge_version", "raw", "error", PROMPT_HASH)
    kinds = {name: pyarrow.string() for name in texts}
    kinds |= {name: pyarrow.int32() for name in ("attempt", "prompt_tokens", "completion_tokens")}
    kinds |= {name: pyarrow.float64() for name in ("score", "cost", "seconds")}
    rows: list[dict[str, Any]] = [to_json(one.vote) | {PROMPT_HASH: one.prompt_hash} for one in votes]
    order = [*Vote.__dataclass_fields__, PROMPT_HASH]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema([(name, kinds[name]) for name in order]))
    part = path.with_suffix(".part")
    pyarrow.parquet.write_table(table, part, compression="zstd")
    part.replace(path)


def read_votes(path: Path) -> list[ArchivedVote]:
    """Return archived votes in order; those of older versions cost 0. Raises PermanentError for a damaged file."""
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise PermanentError(f"{path}: not a complete vote archive: {error}") from error
    hashes = [row.pop(PROMPT_HASH) for row in rows]
    return [ArchivedVote(Vote(**row), prompt_hash) for row, prompt_hash in zip(rows, hashes, strict=True)]


def _identity(archived: ArchivedVote) -> tuple[str, str, str]:
    return archived.vote.judge, archived.vote.judge_version, archived.prompt_hash
