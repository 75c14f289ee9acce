"""Progress of a run: one JSON line an event, appended by every task, read by whoever watches."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

UPDATE_SECONDS = 0.5


@dataclass(frozen=True)
class Event:
    """What happened to a task. `kind` is session (a runner begins), start, progress, done or failed.

    `done` and `total` share the stage's own unit; `time` is Unix seconds, `seconds` what the task took.
    """

    time: float
    task: str
    kind: str
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    seconds: float = 0.0
    reused: bool = False
    pid: int = 0


class Progress:
    """The writing end for one task; without a path it writes nothing."""

    def __init__(self, path: Path | None, task: str) -> None:
        self._path = path
        self._task = task
        self._last = 0.0

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report `done` of `total`; may be called every step, written at most twice a second."""
        now = time.monotonic()
        if done < total and now - self._last < UPDATE_SECONDS:
            return
        self._last = now
        self._write(Event(time.time(), self._task, "progress", done, total, note))

    def session(self) -> None:
        """Report that a runner begins: earlier events belong to earlier tries."""
        self._write(Event(time.time(), self._task, "session", pid=os.getpid()))

    def start(self) -> None:
        """Report that the task begins in this process."""
        self._write(Event(time.time(), self._task, "start", pid=os.getpid()))

    def done(self, seconds: float, reused: bool) -> None:
        """Report the end: how long the work took, or had taken when its result is reused."""
        self._write(Event(time.time(), self._task, "done", seconds=seconds, reused=reused))

    def failed(self, message: str) -> None:
        """Report that the task ended with an error."""
        self._write(Event(time.time(), self._task, "failed", note=message))

    def _write(self, event: Event) -> None:
        if self._path is None:
            return
        # The leading line break parts this event from a line that a killed writer left torn.
        line = "\n" + json.dumps(asdict(event), ensure_ascii=False) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class EventTail:
    """The reading end: each call of `new` returns the events written since the one before."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def new(self) -> list[Event]:
        """Return the new events; an unfinished last line waits, a torn line is dropped."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return list(_parse(complete))


def _parse(data: bytes) -> Iterator[Event]:
    for line in data.splitlines():
        try:
            yield Event(**json.loads(line))
        except (ValueError, TypeError):
            continue


def read_events(path: Path) -> list[Event]:
    """Return the events of the latest session: what was written since a runner last began."""
    events = EventTail(path).new()
    starts = [number for number, event in enumerate(events) if event.kind == "session"]
    return events[starts[-1] :] if starts else events


@dataclass(frozen=True)
class TaskState:
    """Where a task stands: waiting, running, done or failed."""

    task: str
    state: str
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    seconds: float = 0.0
    reused: bool = False


def task_states(events: list[Event]) -> dict[str, TaskState]:
    """Fold events into the latest state of every task, in the order the tasks began."""
    names = {"start": "running", "progress": "running", "done": "done", "failed": "failed"}
    states: dict[str, TaskState] = {}
    for event in events:
        if event.kind in names:
            seconds = event.seconds if event.kind == "done" else 0.0
            states[event.task] = TaskState(
                event.task, names[event.kind], event.done, event.total, event.note, seconds, event.reused
            )
    return states
