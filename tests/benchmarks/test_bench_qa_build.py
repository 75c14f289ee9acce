"""The benchmark of the QA build's memory: the corpus is the same each time, and every figure is there."""

from pathlib import Path

import pytest

from benchmarks.bench_qa_build import corpus, measure


def test_the_corpus_is_the_same_each_time_and_no_two_documents_are_alike() -> None:
    rows = list(corpus(50))
    assert rows == list(corpus(50)) and len({row["title"] for row in rows}) == 50
    assert all(400 < len(row["text"]) < 600 for row in rows)


@pytest.mark.slow
def test_every_figure_is_there_and_no_document_is_without_questions(tmp_path: Path) -> None:
    found = measure([20, 40], 10, tmp_path)
    for blocks in ("shipped", "small"):
        for count in ("20", "40"):
            one = found["sizes"][blocks][count]
            assert one["questions"] >= 4 * int(count) and 0 < one["held_out"] < one["questions"]
            assert 0 < one["before"] < one["peak"] and one["seconds"] > 0
    assert found["ours"] == found["sizes"]["shipped"]["40"]["peak"] and found["documents_per_second"] > 0
