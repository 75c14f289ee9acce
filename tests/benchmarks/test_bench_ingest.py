"""The ingestion benchmark's corpus is what it says, and both sides find the planted duplicates."""

import pytest

from benchmarks.bench_ingest import corpus, side_by_side


def test_the_corpus_is_the_same_each_time_and_has_planted_duplicates() -> None:
    rows = list(corpus(400))
    assert rows == list(corpus(400))
    assert 20 < sum("-of-" in row["id"] for row in rows) < 80
    assert any("灯" in row["text"] for row in rows)


@pytest.mark.slow
def test_both_sides_find_every_near_duplicate() -> None:
    pytest.importorskip("datasketch")
    found = side_by_side(200)
    assert found["recall"] == [1.0, 1.0] and found["false"] == [0, 0] and found["true"] > 10
