"""The benchmark of the teacher client runs end to end, and each side buys every reply."""

import pytest

from benchmarks.bench_teacher import measure, table


def test_both_sides_run_and_every_figure_is_there() -> None:
    pytest.importorskip("openai")
    entry = measure(calls=24, at_once=8, milliseconds=5.0, rounds=1)
    assert entry["bound"] == pytest.approx(24 / 8 * 0.005)
    assert entry["ratio"] == pytest.approx(entry["peer"] / entry["ours"])
    # No client is faster than the server lets it.
    assert min(entry["over_ideal"].values()) >= 1
    assert table(entry).startswith("teacher, 24 calls, 8 at once, 5 ms a reply: ideal 0.01 s, ours ")
