"""The private store: what may not stand in an artifact, which others read: texts of private suites, and the replies.

STATE/private/<digest of the items>/<of the weights>-<of how they answer>/    replies.jsonl, votes.parquet
              llm-cache/                                                      what servers were asked, and said

For this user alone (mode 0700), and uploaded nowhere. Out of it come scores, counts and digests; what its calls cost
stands in the books of the state folder's own cache, so that a ceiling holds for both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iar.config import EngineServer, RunFile
from iar.errors import IarError
from iar.methods.digest import digest_json
from iar.records import EvalItem, Look, Reply, read_records, to_json
from iar.services.engines import OpenEngine, ReplyEngine, answering, engine_opener
from iar.services.judges import Judge, Judged, open_judges, vote, write_votes
from iar.services.replies import complete_replies
from iar.services.subjects import Subject

PRIVATE = "private"
DIGITS = 16
_REPLIES, _VOTES = "replies.jsonl", "votes.parquet"


def set_digest(items: Sequence[EvalItem]) -> str:
    """Return what identifies an evaluation set: all that models are asked and replies are held against."""
    return digest_json([to_json(item) for item in items])


@dataclass(frozen=True)
class Vault:
    """The private store of a state folder, with judges and a server's replies in a cache of its own.

    `answering` is the digest of how models answer. `open_engine` is None where the engine keeps nothing, so that
    the one of the public suites answers.
    """

    folder: Path
    answering: str
    judges: Sequence[Judge]
    open_engine: OpenEngine | None

    def place(self, items: Sequence[EvalItem], subject: Subject) -> Path:
        """Return the folder of one model's replies to one set, made where it is missing."""
        place = _place(self.folder, set_digest(items), subject.digest, self.answering)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def examine(
        self,
        subject: Subject,
        items: Sequence[EvalItem],
        judged: Sequence[EvalItem],
        engine: Callable[[], ReplyEngine],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> tuple[dict[str, Reply], dict[str, Judged]]:
        """Return the replies to a private suite and what the panel settled on those of them that it judges.

        What goes wrong is named by suite and kind of error, and no text of it is passed on.
        """
        place = self.place(items, subject)

        def opened() -> ReplyEngine:
            return self.open_engine(subject) if self.open_engine else engine()

        with withheld(items[0].suite):
            replies = complete_replies(place / _REPLIES, items, opened, (), on_progress)
            verdicts = vote(subject.model, judged, replies, self.judges)
        write_votes(place / _VOTES, verdicts.votes)
        return replies, verdicts.settled


def _place(private: Path, items: str, weights: str, answering: str) -> Path:
    return private / items[:DIGITS] / f"{weights[:DIGITS]}-{answering[:DIGITS]}"


@contextmanager
def withheld(suite: str) -> Iterator[None]:
    """Pass an expected error on as one of its kind without its text, which may quote what was asked."""
    try:
        yield
    except IarError as error:
        raise type(error)(
            f"{suite}: {type(error).__name__} while the private suite was asked or judged; its text is withheld, as it "
            "may quote a prompt. Try the same engine and judges on a suite that is not private"
        ) from None


def open_vault(run_file: RunFile, state: Path, items: Iterable[EvalItem]) -> Vault | None:
    """Return the private store below a state folder; None where none of the items is private."""
    if not any(item.private for item in items):
        return None
    folder = state / PRIVATE
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    cache, books = folder / "llm-cache", state / "llm-cache"
    opener = engine_opener(run_file, cache, books) if isinstance(run_file.evaluate.engine, EngineServer) else None
    return Vault(folder, answering(run_file), open_judges(run_file, cache, books), opener)


def replies_told(run_file: RunFile, state: Path, look: Look, weights: str) -> list[Reply]:
    """Return what a model of these weights answered to the private set of a look; none where the store is gone."""
    path = _place(state / PRIVATE, look.set_digest, weights, answering(run_file)) / _REPLIES
    return list(read_records(path, Reply)) if path.is_file() else []
