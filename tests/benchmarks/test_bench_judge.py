"""The benchmark of judging runs end to end, small, and every figure is there."""

import pytest

from benchmarks.bench_judge import auditing, judging, table


def test_judgements_and_audit_run_and_say_what_they_took() -> None:
    entry = judging(judgements=60, at_once=12, milliseconds=5.0)
    assert entry["bound"] == pytest.approx(60 / 12 * 0.005)
    assert entry["over_ideal"] >= 1  # no client is faster than the server lets it
    audit = auditing(votes=2_000, resamples=50)
    assert audit["votes"] == pytest.approx(2_000, rel=0.1) and audit["votes"] > 2 * audit["replies"]
    sizes = {"judgements": 60, "at_once": 12, "server_milliseconds": 5.0, "resamples": 50}
    assert "judge, 60 judgements, 12 at once, 5 ms a reply: ideal 0.03 s" in table(
        entry | {"audit": audit, "sizes": sizes}
    )
