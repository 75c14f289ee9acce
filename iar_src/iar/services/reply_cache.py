"""Model replies on disk, so that an interrupted run buys no reply twice, with what they cost.

One SQLite file a folder: safe against kill -9, and shared by parallel tasks. Every call that a provider
may bill is archived with the raw body that came back; only replies are ever served again, never errors.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from itertools import chain
from pathlib import Path

from iar.errors import TemporaryError, UserError

FILE_NAME = "replies.sqlite"
_ROWS_AT_ONCE = 64  # in one statement; older SQLite takes at most 999 values in one
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
INSERT INTO {books}.spent {rows} ON CONFLICT (model, revision) DO UPDATE SET calls = calls + excluded.calls,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens
"""
_OWN, _SHARED = "main", "books"


Stored = asyncio.Future[None]
"""Done once a call is on disk; raises where it could not be put there."""


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
        return Spent(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    @property
    def tokens(self) -> int:
        """Of prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


class ReplyCache:
    """An open cache; made by `open_cache`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, books: Path | None = None) -> None:
        self.books = books or path.parent
        self._account = _SHARED if books else _OWN
        self._connection = connection
        self._path = path
        self._one_commit = threading.Lock()

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Return by key the body stored first under it and the seconds it took; from any thread, hundreds of keys."""
        marks = ", ".join("?" * len(keys))
        # From last to first, so that the first one stays.
        query = f"SELECT key, raw, seconds FROM calls WHERE key IN ({marks}) AND usable ORDER BY rowid DESC"
        with self._one_commit:
            found = self._connection.execute(query, keys).fetchall()
        return {key: (raw, seconds) for key, raw, seconds in found}

    def put(self, calls: Sequence[Call]) -> None:
        """Store calls in one commit, from any thread. Raises TemporaryError where the disk does not take them."""
        one = f"({', '.join('?' * (len(fields(Call)) + 1))})"
        try:
            with self._one_commit, self._connection:
                # A statement a call would let go of the interpreter, and wait for it again, for each of them.
                for start in range(0, len(calls), _ROWS_AT_ONCE):
                    rows = [(*vars(call).values(), time.time()) for call in calls[start : start + _ROWS_AT_ONCE]]
                    marks = ", ".join([one] * len(rows))
                    self._connection.execute(f"INSERT INTO calls VALUES {marks}", [*chain.from_iterable(rows)])
                add = _ADD.format(books=self._account, rows="VALUES (?, ?, ?, ?, ?)")
                for (model, revision), spent in _costs(calls).items():
                    self._connection.execute(add, (model, revision, *astuple(spent)))
        except sqlite3.OperationalError as error:
            raise TemporaryError(
                f"reply cache {self._path} takes no more replies ({error}): free disk space there, then run again"
            ) from error

    def spent(self, model: str, revision: str) -> Spent:
        """Return all that was ever bought of a model, with every cache that has its books here."""
        columns = "calls, prompt_tokens, completion_tokens"
        query = f"SELECT {columns} FROM {self._account}.spent WHERE model = ? AND revision = ?"
        return Spent(*(self._connection.execute(query, (model, revision)).fetchone() or ()))

    def spent_between(self, model: str, revision: str, start: float, end: float) -> Spent:
        """Return what was bought of a model between two Unix times, of the replies that lie here."""
        query = (
            "SELECT COUNT(*), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(completion_tokens), 0) FROM calls"
            " WHERE model = ? AND revision = ? AND stored BETWEEN ? AND ?"
        )
        return Spent(*self._connection.execute(query, (model, revision, start, end)).fetchone())


def _costs(calls: Iterable[Call]) -> dict[tuple[str, str], Spent]:
    """Return what some calls cost together, by model and revision."""
    costs: dict[tuple[str, str], Spent] = {}
    for call in calls:
        model = call.model, call.revision
        costs[model] = costs.get(model, Spent()) + Spent(1, call.prompt_tokens, call.completion_tokens)
    return costs


class GroupCommit:
    """Stores one model's calls from one event loop: those that end while a commit is under way share the next one.

    A commit waits for the disk, 10 ms and more; one a call would hold up all the others. `spent` is what
    the model has cost as of the last commit, by all processes.
    """

    def __init__(self, cache: ReplyCache, model: str, revision: str) -> None:
        self.spent = cache.spent(model, revision)
        self.books = cache.books
        self._cache = cache
        self._model = (model, revision)
        self._waiting: list[tuple[Call, Stored]] = []
        self._writer: asyncio.Task[None] | None = None

    def put(self, call: Call) -> Stored:
        """Return a future that is done once `call` is on disk, or raises as `ReplyCache.put` does of the commit."""
        stored: Stored = asyncio.get_running_loop().create_future()
        self._waiting.append((call, stored))
        self._writer = self._writer or asyncio.create_task(self._commit_all())
        return stored

    async def drain(self) -> None:
        """Return once nothing waits for the disk, whatever became of it."""
        if self._writer:
            await asyncio.wait([self._writer])

    async def _commit_all(self) -> None:
        """Commit until nobody waits; one who was cancelled meanwhile has its call stored all the same."""
        while batch := self._waiting:
            self._waiting = []
            error: Exception | None = None
            try:
                self.spent = await asyncio.to_thread(self._commit, [call for call, _ in batch])
            except Exception as caught:  # not ours: it is raised where each call is waited for
                error = caught
            for _, stored in batch:
                if stored.done():
                    continue
                if error:
                    stored.set_exception(error)
                    stored.exception()  # whoever is gone by now need not be told
                else:
                    stored.set_result(None)
        self._writer = None

    def refresh(self) -> None:
        """Learn what other processes have spent since the last commit here."""
        with open_cache(self.books) as cache:  # not the connection that may be committing
            self.spent = cache.spent(*self._model)

    def _commit(self, batch: Sequence[Call]) -> Spent:
        self._cache.put(batch)
        return self._cache.spent(*self._model)


@contextmanager
def open_cache(folder: Path, books: Path | None = None) -> Iterator[ReplyCache]:
    """Open (or make) the cache of a folder. Raises UserError for a file that is no cache.

    `books` is the folder of another cache in which what is bought here is counted too, as numbers alone; one ceiling
    holds for both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, check_same_thread=False)) as connection:
        try:
            connection.executescript(_SCHEMA)
            if books:
                _share(connection, books)
        except sqlite3.DatabaseError as error:
            raise UserError(f"reply cache {path} cannot be used ({error}): move it away and run again") from error
        yield ReplyCache(connection, path, books)


def _share(connection: sqlite3.Connection, books: Path) -> None:
    """Count what is bought over a connection in the books of another cache, and what was before they were shared."""
    with open_cache(books):
        pass  # now they are there
    connection.execute(f"ATTACH DATABASE ? AS {_SHARED}", (str(books / FILE_NAME),))
    if connection.execute(f"SELECT 1 FROM {_OWN}.spent").fetchone():
        with connection:
            connection.execute(_ADD.format(books=_SHARED, rows=f"SELECT * FROM {_OWN}.spent WHERE true"))
            connection.execute(f"DELETE FROM {_OWN}.spent")
