"""What the calls under way may still cost, of all processes that share a reply cache: each has a page of its own.

A page is a small file that its owner holds locked while calls are under way. So the page of a process that was killed
is known by its lock, which the system took back, and counts no more.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from iar.methods.digest import digest_json
from iar.services.reply_cache import Spent

LOCK = "lock"


class Ledger:
    """This client's page beside those of all others that call the same model with the same cache."""

    def __init__(self, cache_folder: Path, model: str, revision: str) -> None:
        self._folder = cache_folder / "under-way" / digest_json([model, revision])[:16]
        self._page: Path | None = None
        self._file = -1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others from reading and writing; brief, for everyone waits."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def others(self) -> Spent:
        """Return what the calls of all others may cost; call it while the ledger is held."""
        pages = (page for page in self._folder.iterdir() if page.name != LOCK and page != self._page)
        return sum(map(_read, pages), Spent())

    def write(self, reserved: Spent) -> None:
        """Let the others know what this client's calls may cost; call it while the ledger is held."""
        if self._page is None:
            self._page = self._folder / f"{os.getpid()}-{os.urandom(8).hex()}"
            self._file = os.open(self._page, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        if reserved.calls:
            text = json.dumps(astuple(reserved)).encode()
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)
            return
        self._page.unlink(missing_ok=True)
        os.close(self._file)
        self._page = None


def _read(page: Path) -> Spent:
    """Return what a page says; a page that nobody holds is of a process that is gone, and is removed."""
    file = os.open(page, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Spent(*json.loads(os.pread(file, 200, 0)))
    finally:
        os.close(file)
    page.unlink()
    return Spent()
