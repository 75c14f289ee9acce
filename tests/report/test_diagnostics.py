"""The diagnostics on the page: two models beside each other, groups, and nothing where nothing was asked."""

import json
from dataclasses import replace
from pathlib import Path

from iar.records import BitsPerByte, ModelScores, SuiteScore
from iar.report.diagnostics import Diagnostics, group_rows, headroom, read_diagnostics, rows

SCORE = {"points": 50.0, "low": 40.0, "high": 60.0, "count": 10}


def model(**scores: object) -> dict[str, object]:
    return {"scores": scores, "harmless_words": 12.25, "identity": [["Who are you?", "<b>Nobody</b>"]]}


def test_each_probe_is_a_row_with_both_models() -> None:
    found = Diagnostics(
        {"ties-d0.5": model(closed_book=SCORE, open_book=SCORE), "theta_0": model(closed_book=SCORE)}, {}
    )
    lines = rows(found)
    assert [cells for _, cells in lines] == [["50.0 (40.0 to 60.0)"] * 2, ["50.0 (40.0 to 60.0)", ""], ["12.2", "12.2"]]
    assert "passages" in lines[1][0]
    assert rows(Diagnostics({}, {})) == []


def test_groups_stand_in_order_and_one_alone_says_nothing() -> None:
    parts = [{"group": name} | SCORE for name in ("fact", "mechanism")]
    found = Diagnostics({}, {"ties-d0.5": {"domain": {"question_type": parts}}, "theta_0": {}})
    assert [(name, count) for name, count, _ in group_rows(found, "domain", "question_type")] == [
        ("fact", 10), ("mechanism", 10)
    ]  # fmt: skip
    assert group_rows(found, "mmlu", "subject") == []
    assert (
        group_rows(replace(found, breakdowns={"theta_0": {"domain": {"document": parts[:1]}}}), "domain", "document")
        == []
    )


def test_they_are_read_where_the_locked_test_left_them(tmp_path: Path) -> None:
    (tmp_path / "theta_0").mkdir()
    (tmp_path / "theta_0" / "breakdown.json").write_text(json.dumps({"domain": {}}))
    (tmp_path / "diagnostics.json").write_text(json.dumps({"models": {"theta_0": model()}}))
    found = read_diagnostics([tmp_path], "ties-d0.5")
    assert list(found.models) == ["theta_0"] and found.breakdowns == {"theta_0": {"domain": {}}}
    assert read_diagnostics([tmp_path / "older"], "") == Diagnostics({}, {}) == read_diagnostics([], "")


def test_headroom_is_told_from_the_untrained_model() -> None:
    suite = SuiteScore("domain", 70.6, 66.0, 75.0, 100, 0)
    scores = ModelScores("theta_0", "test", "", (suite,), 70.6, 0, 0, 0)
    assert headroom([scores]).startswith("theta_0 has 70.6 (66.0 to 75.0) domain points. The untrained model answers")
    assert headroom([]) == ""
    bits = [BitsPerByte("theta_0", "d", 0.7, 1.0, 9, 9), BitsPerByte("pick", "e", 0.1, 1.0, 9, 9)]
    told = headroom([scores], bits, [BitsPerByte("llama", "f", 1.0, 1.0, 9, 9)])
    assert "It needs 0.700 bits for a byte of the documents, other models: llama 1.000. That is 30 % fewer" in told


def test_replies_that_the_limit_ended_are_flagged_beside_the_score() -> None:
    cut = model(open_book=SCORE, continued_seen=SCORE) | {"truncated": {"open_book": 0.25, "continued_seen": 1.0}}
    assert [cells for _, cells in rows(Diagnostics({"theta_0": cut}, {}))][:2] == [
        ["50.0 (40.0 to 60.0), 25.0 % cut off"],
        ["50.0 (40.0 to 60.0)"],
    ]
