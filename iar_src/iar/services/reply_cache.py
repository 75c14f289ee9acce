"""Model replies on disk, so that an interrupted run buys no reply twice.

One SQLite file a folder: safe against kill -9, and shared by parallel tasks. Only replies are kept,
never errors, each with the raw text the server sent.
"""

import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from iar.errors import UserError

FILE_NAME = "replies.sqlite"
LOCK_SECONDS = 60.0  # parallel tasks write one row at a time; a minute means a stuck process

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, request TEXT NOT NULL, raw TEXT NOT NULL,
    seconds REAL NOT NULL, stored REAL NOT NULL
)
"""


@dataclass(frozen=True)
class CachedReply:
    """The body the server sent, and how long the call took."""

    raw: str
    seconds: float


class ReplyCache:
    """An open cache; made by `open_cache`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, key: str) -> CachedReply | None:
        """Return the reply stored under `key`, if any."""
        row = self._connection.execute("SELECT raw, seconds FROM replies WHERE key = ?", (key,)).fetchone()
        return CachedReply(*row) if row else None

    def put(self, key: str, model: str, request: str, reply: CachedReply) -> None:
        """Store a reply at once; the first one stored under a key stays."""
        with self._connection:
            self._connection.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?)",
                (key, model, request, reply.raw, reply.seconds, time.time()),
            )

    def stored(self, models: Collection[str], start: float, end: float) -> list[str]:
        """Return the raw replies of these models that were stored between two Unix times."""
        marks = ", ".join("?" * len(models))
        query = f"SELECT raw FROM replies WHERE model IN ({marks}) AND stored BETWEEN ? AND ?"
        return [raw for (raw,) in self._connection.execute(query, (*models, start, end))]


@contextmanager
def open_cache(folder: Path) -> Iterator[ReplyCache]:
    """Open (or make) the cache of a folder. Raises UserError for a file that is no cache."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as connection:
        try:
            connection.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise UserError(f"reply cache {path} cannot be used ({error}): move it away and run again") from error
        yield ReplyCache(connection)
