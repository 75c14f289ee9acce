"""Progress lines: throttled, tolerant of torn lines, folded into where each task stands."""

import json
from pathlib import Path

from iar.services.progress import EventTail, Progress, read_events, task_states
from iar.services.progress_view import PlainView, duration


def test_updates_are_throttled_but_the_last_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, "inject")
    for step in range(1, 1001):
        progress.update(step, 1000)
    events = read_events(path)
    assert len(events) < 10
    assert events[-1].done == events[-1].total == 1000


def test_a_torn_line_is_dropped_and_hides_no_later_event(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, "inject")
    progress.start()
    with path.open("a") as file:
        file.write('{"time": 1.0, "task": "inj')  # a writer killed in the middle
    tail = EventTail(path)
    assert [event.kind for event in tail.new()] == ["start"]
    progress.done(2.0, reused=False)
    assert [event.kind for event in tail.new()] == ["done"]


def test_only_the_latest_session_counts(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.jsonl", "align")
    progress.start()
    progress.failed("killed")
    progress.session()
    progress.start()
    states = task_states(read_events(tmp_path / "progress.jsonl"))
    assert states["align"].state == "running"


def test_without_a_path_nothing_is_written() -> None:
    Progress(None, "test").update(1, 2)


def test_plain_lines_are_sparse_and_say_time_left(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    lines: list[str] = []
    view = PlainView(lines.append)
    kinds = [("start", 0, 0), *(("progress", second, second) for second in range(1, 31)), ("done", 30, 0)]
    with path.open("w") as file:
        for kind, when, done in kinds:
            line = {"time": when, "task": "inject", "kind": kind, "done": done, "total": 40, "seconds": 30.0}
            file.write(json.dumps(line) + "\n")
    for event in EventTail(path).new():
        view(event)
    assert lines == [
        "inject: 25 %, 30 s left",
        "inject: 50 %, 20 s left",
        "inject: 75 %, 10 s left",
        "inject: done in 30 s",
    ]


def test_durations_read_like_speech() -> None:
    assert [duration(value) for value in (4.23, 42, 185, 7800)] == ["4.2 s", "42 s", "3 min 05 s", "2 h 10 min"]
