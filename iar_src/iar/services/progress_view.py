"""Progress for people: a bar for the running task on a terminal, plain lines anywhere else."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from iar.services.progress import Event

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0
MINUTE = 60.0


@contextlib.contextmanager
def terminal_view(console: "Console") -> Iterator[Callable[[Event], None]]:
    """Yield what shows the events of a run on this console."""
    if console.is_terminal:
        with _bars(console) as show:
            yield show
    else:
        yield PlainView(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))


class Estimate:
    """Share done and seconds left of one task, from its own speed in this process."""

    def __init__(self) -> None:
        self._first: Event | None = None

    def left(self, event: Event) -> float | None:
        """Return the seconds left after this event; None until there is a speed."""
        first = self._first = self._first or event
        gained, elapsed = event.done - first.done, event.time - first.time
        return (event.total - event.done) * elapsed / gained if gained > 0 and elapsed > 0 else None


class PlainView:
    """One line when a task starts, about every ten seconds while it runs, and when it ends."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._estimates: dict[str, Estimate] = {}
        self._written: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "start":
            self._estimates[event.task] = Estimate()
            self._written[event.task] = event.time
        elif event.kind == "progress":
            self._progress(event)
        elif event.kind == "done":
            self._write(f"{event.task}: {ending(event)}")
        elif event.kind == "failed":
            self._write(f"{event.task}: failed")

    def _progress(self, event: Event) -> None:
        left = self._estimates.setdefault(event.task, Estimate()).left(event)
        first = event.task not in self._written
        if first or event.time - self._written[event.task] >= LINE_SECONDS:
            self._written[event.task] = event.time
            self._write(f"{event.task}: {standing(event, left)}")


def ending(event: Event) -> str:
    """Return how a task ended, in words."""
    return "reused" if event.reused else f"done in {duration(event.seconds)}"


def standing(event: Event, left: float | None) -> str:
    """Return where a task stands: percent, time left, and the stage's own note."""
    parts = [f"{100 * event.done / event.total:.0f} %" if event.total else f"{event.done:.0f}"]
    parts += [f"{duration(left)} left"] if left is not None else []
    parts += [event.note] if event.note else []
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return a time as people say it: 4.2 s, 3 min 05 s, 2 h 10 min."""
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < MINUTE / 6 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextlib.contextmanager
def _bars(console: "Console") -> Iterator[Callable[[Event], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[standing]}", markup=False),
        TimeElapsedColumn(),
    )
    rows: dict[str, TaskID] = {}
    estimates: dict[str, Estimate] = {}

    with Progress(*columns, console=console, transient=True) as bars:

        def show(event: Event) -> None:
            if event.kind == "start":
                estimates[event.task] = Estimate()
                rows[event.task] = bars.add_task(event.task, total=None, standing="")
            elif event.task in rows and event.kind == "progress":
                text = standing(event, estimates[event.task].left(event))
                bars.update(rows[event.task], completed=event.done, total=event.total or None, standing=text)
            elif event.task in rows:
                bars.remove_task(rows.pop(event.task))
                mark, how = ("[green]✓[/]", ending(event)) if event.kind == "done" else ("[red]✗[/]", "failed")
                bars.console.print(f"{mark} {event.task}  [dim]{how}[/]")

        yield show
