"""The SQLite file of a local tracking store, made whole or not at all."""

import fcntl
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

SQLITE = "sqlite:///"


def prepare_database(uri: str, create: Callable[[str], object]) -> None:
    """Make the database file of a SQLite `uri` by `create(uri of an empty place)`, unless it is there.

    The tables take hundreds of steps to make, which no two processes may take at once, and which nothing
    resumes after a kill: so they are made aside, under a lock, and moved into place.
    """
    database = Path(uri.removeprefix(SQLITE))
    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f"{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            _make_aside(database, create)


def _make_aside(database: Path, create: Callable[[str], object]) -> None:
    with TemporaryDirectory(prefix=f"{database.name}.", dir=database.parent) as folder:
        made, whole = Path(folder) / "made.db", Path(folder) / "whole.db"
        create(f"{SQLITE}{made}")
        # What was made may have pages in a journal beside it.
        with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(whole)) as target:
            source.backup(target)
        whole.replace(database)
