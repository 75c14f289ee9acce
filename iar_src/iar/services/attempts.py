"""Tries of a task that made nothing: each becomes an activity of the registry, with its end and what it used.

STATE/tries/<activity>.json is the note of a try, which holds it locked as long as it lives. It goes when the result is
published. What a try left that failed or was killed is recorded at once, or by whoever works in the state folder next.
"""

import fcntl
import json
import os
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import iar
from iar.errors import IarError
from iar.methods.explain import redact
from iar.records import write_json
from iar.services.progress import EventTail
from iar.services.registry_records import FAILED, KILLED, RUNNING, Producer
from iar.services.surroundings import surroundings
from iar.services.workspace import Workspace

if TYPE_CHECKING:
    from iar.services.registry import Registry

TRIES = "tries"
MOST_CHARACTERS = 300
LEAST_SECRET = 8
SECRET_NAMES = ("KEY", "TOKEN", "PASSWORD", "SECRET")
Cost = Callable[[float], dict[str, float]]


@dataclass(frozen=True)
class Tries:
    """The notes of a state folder, and the registry that they are recorded in."""

    workspace: Workspace
    registry_url: str

    @contextmanager
    def noted(self, begun: Producer, cost: Cost) -> "Iterator[Callable[[], None]]":
        """Keep a note of a try that has begun while the block runs; it yields what says that the try succeeded.

        `cost`: what was spent up to a Unix time. An error passes unchanged, and is recorded where that can be done.
        """
        note = self.workspace.state / TRIES / f"{begun.id[:16]}.json"
        held = _hold(note, begun)
        try:
            yield lambda: note.unlink(missing_ok=True)
        except Exception as error:
            ended = time.time()
            with suppress(OSError, IarError, sqlite3.Error):  # a full disk must not hide the error itself
                kind, line = type(error).__name__, error_line(error)
                failed = replace(begun, **vars(surroundings()), status=FAILED, error=kind, message=line)
                write_json(note, asdict(replace(failed, seconds=ended - begun.started, cost=cost(ended))))
            self.settle()
            raise
        finally:
            os.close(held)

    def settle(self) -> None:
        """Record the tries that ended without a result. What cannot be recorded now waits; no error is raised."""
        folder = self.workspace.state / TRIES
        ended = {note: one for note in sorted(folder.glob("*.json")) if (one := self._ended(note))}
        if not ended:
            return
        from sqlalchemy.exc import SQLAlchemyError

        from iar.services.registry import Registry
        from iar.services.registry_heads import keep_head

        with suppress(IarError, OSError, SQLAlchemyError):  # a registry that is down must not hide a try's own error
            registry = Registry.open(self.registry_url)
            try:
                for note, one in ended.items():
                    _record(registry, one)
                    note.unlink(missing_ok=True)
                keep_head(self.workspace.state, registry)
            finally:
                registry.close()

    def _ended(self, note: Path) -> Producer | None:
        """Return the try of a note as it ended, None where it still runs or somebody else has just recorded it."""
        try:
            one = Producer.parse(note.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return None
        if one.status != RUNNING:
            return one
        return None if _is_held(note) else replace(one, status=KILLED, seconds=self._life(one), error=KILLED)

    def _life(self, one: Producer) -> float:
        """Return the seconds from a try's start to the last that it told of itself."""
        events = EventTail(self.workspace.run(one.run_id) / "progress.jsonl").new()
        return max([0.0, *(event.time - one.started for event in events if event.task == one.stage)])


def error_line(error: Exception) -> str:
    """Return an error in one line without secrets: an expected one's own words, of others where they were raised.

    What an unexpected error says may hold text of documents, or of the test.
    """
    if not isinstance(error, IarError):
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if _place(frame.filename)]
        return f"unexpected, at {_place(own[-1].filename)}:{own[-1].lineno}" if own else "unexpected"
    text = redact(str(error).strip().partition("\n")[0])
    for name, value in os.environ.items():
        if name.upper().endswith(SECRET_NAMES) and len(value) >= LEAST_SECRET:
            text = text.replace(value, "***")
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def _place(file: str) -> str:
    """Return the path of a file in this package, "" of any other."""
    package = f"{Path(iar.__file__).parent}{os.sep}"
    return file.removeprefix(package) if file.startswith(package) else ""


def _record(registry: "Registry", one: Producer) -> None:
    """Record a try; of what it used, only what the registry knows."""
    known = registry.labels(digest for _, digest in one.used)
    registry.activity(replace(one, used=tuple(pair for pair in one.used if pair[1] in known)))


def _hold(note: Path, begun: Producer) -> int:
    """Write a note and keep it locked until the descriptor that is returned is closed, or the process ends."""
    note.parent.mkdir(parents=True, exist_ok=True)
    part = note.with_suffix(".part")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # before anybody can see it
    os.write(descriptor, json.dumps(asdict(begun)).encode())
    part.replace(note)
    return descriptor


def _is_held(note: Path) -> bool:
    try:
        descriptor = os.open(note, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
