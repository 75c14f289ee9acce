"""Model replies on disk, so that an interrupted run buys no reply twice, with what they cost.

One SQLite file a folder: safe against kill -9, and shared by parallel tasks. Every call that a provider
may bill is archived with the raw body that came back; only replies are ever served again, never errors.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from iar.errors import TemporaryError, UserError

FILE_NAME = "replies.sqlite"
LOCK_SECONDS = 60.0  # parallel tasks commit some rows at a time; a minute means a stuck process

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT NOT NULL, model TEXT NOT NULL, revision TEXT NOT NULL, base_url TEXT NOT NULL, request TEXT NOT NULL,
    raw TEXT NOT NULL, usable INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, stored REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS usable_by_key ON calls (key) WHERE usable;
CREATE TABLE IF NOT EXISTS spent (
    model TEXT NOT NULL, revision TEXT NOT NULL, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, PRIMARY KEY (model, revision)
);
"""
_ADD = """
INSERT INTO spent VALUES (?, ?, 1, ?, ?) ON CONFLICT (model, revision) DO UPDATE SET calls = calls + 1,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens
"""


@dataclass(frozen=True)
class Call:
    """A call that a provider may bill: what was asked where, the body that came back, and how long it took.

    `raw` is "" where nothing came back in time; `usable` where it holds a reply to `key`.
    """

    key: str
    model: str
    revision: str
    base_url: str
    request: str
    raw: str
    usable: bool
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True)
class Spent:
    """What was bought of one model, the tokens by the server's count, or at most where it gave none."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def tokens(self) -> int:
        """Of prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


class ReplyCache:
    """An open cache; made by `open_cache`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.folder = path.parent
        self._connection = connection
        self._path = path
        self._one_commit = threading.Lock()

    def get(self, key: str) -> tuple[str, float] | None:
        """Return the body stored first under `key` and the seconds it took, if any."""
        query = "SELECT raw, seconds FROM calls WHERE key = ? AND usable ORDER BY rowid LIMIT 1"
        found: tuple[str, float] | None = self._connection.execute(query, (key,)).fetchone()
        return found

    def put(self, calls: Sequence[Call]) -> None:
        """Store calls in one commit, from any thread. Raises TemporaryError where the disk does not take them."""
        marks = ", ".join("?" * (len(fields(Call)) + 1))
        try:
            with self._one_commit, self._connection:
                self._connection.executemany(
                    f"INSERT INTO calls VALUES ({marks})", [(*vars(call).values(), time.time()) for call in calls]
                )
                self._connection.executemany(
                    _ADD, [(call.model, call.revision, call.prompt_tokens, call.completion_tokens) for call in calls]
                )
        except sqlite3.OperationalError as error:
            raise TemporaryError(
                f"reply cache {self._path} takes no more replies ({error}): free disk space there, then run again"
            ) from error

    def spent(self, model: str, revision: str) -> Spent:
        """Return all that was ever bought of a model."""
        query = "SELECT calls, prompt_tokens, completion_tokens FROM spent WHERE model = ? AND revision = ?"
        return Spent(*(self._connection.execute(query, (model, revision)).fetchone() or ()))

    def spent_between(self, model: str, revision: str, start: float, end: float) -> Spent:
        """Return what was bought of a model between two Unix times."""
        query = (
            "SELECT COUNT(*), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(completion_tokens), 0) FROM calls"
            " WHERE model = ? AND revision = ? AND stored BETWEEN ? AND ?"
        )
        return Spent(*self._connection.execute(query, (model, revision, start, end)).fetchone())


class GroupCommit:
    """Stores one model's calls from one event loop: those that end while a commit is under way share the next one.

    A commit waits for the disk, 10 ms and more; one a call would hold up all the others. `spent` is what
    the model has cost as of the last commit, by all processes.
    """

    def __init__(self, cache: ReplyCache, model: str, revision: str) -> None:
        self.spent = cache.spent(model, revision)
        self.folder = cache.folder
        self._cache = cache
        self._model = (model, revision)
        self._waiting: list[Call] = []
        self._next: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()

    async def put(self, call: Call) -> None:
        """Return once `call` is on disk. Raises as `ReplyCache.put`, for every call of a commit that fails."""
        self._waiting.append(call)
        self._next = self._next or asyncio.create_task(self._commit_waiting())
        await asyncio.shield(self._next)  # one that is cancelled takes no other's commit with it

    async def _commit_waiting(self) -> None:
        async with self._committing:
            batch, self._waiting, self._next = self._waiting, [], None
            self.spent = await asyncio.to_thread(self._commit, batch)

    def refresh(self) -> None:
        """Learn what other processes have spent since the last commit here."""
        with open_cache(self.folder) as cache:  # not the connection that may be committing
            self.spent = cache.spent(*self._model)

    def _commit(self, batch: Sequence[Call]) -> Spent:
        self._cache.put(batch)
        return self._cache.spent(*self._model)


@contextmanager
def open_cache(folder: Path) -> Iterator[ReplyCache]:
    """Open (or make) the cache of a folder. Raises UserError for a file that is no cache."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, check_same_thread=False)) as connection:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise UserError(f"reply cache {path} cannot be used ({error}): move it away and run again") from error
        yield ReplyCache(connection, path)
