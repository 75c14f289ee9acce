"""The oracle in the report: the figure, the table, and a warning wherever results are read."""

from base64 import b64encode
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from iar.console import print_results
from iar.records import Divergence, OracleEpoch, OracleWatch, SuiteScore, to_json, write_json
from iar.report.card import model_card
from iar.report.data import ReportData, collect, results_json
from iar.report.html import render
from iar.report.oracle import curves_text, epoch_rows, oracle_curves
from iar.report.tables import results_markdown
from tests.report.folders import NASTY, RUN_FILE, make_run

FALL = Divergence(1, 180, 0.975, -21.5, -30.0, -12.0, 4.0, -2.0, 9.0, -1.25)
SAID = "theta_IA: since epoch 1 the score by judge"


def watch(model: str, divergences: tuple[Divergence, ...] = ()) -> OracleWatch:
    epochs = tuple(
        OracleEpoch(
            number, 30 * number, "e" * 64, 2.5 - number / 2,
            SuiteScore("oracle", 70.0 - 10 * number, 50.0, 65.5, 200, 3),
            SuiteScore("rule:exact", 20.0 + number, 15.0, 30.0, 200, 0),
        )
        for number in (1, 2, 3)
    )  # fmt: skip
    return OracleWatch(model, f"judge {NASTY}", "0123abcd", epochs, divergences)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    made = make_run(tmp_path_factory.mktemp("run"))
    for role, found in {"tuned": watch("theta_IA", (FALL,)), "vanilla": watch("vanilla")}.items():
        (made.inputs[role] / "oracle").mkdir()
        write_json(made.inputs[role] / "oracle" / "oracle.json", to_json(found))
    return collect(made.inputs, RUN_FILE, "test-0123456789")


def test_loss_accuracy_and_score_stand_in_one_figure_and_one_table(report: ReportData) -> None:
    figure = oracle_curves(report)
    page = render(report)
    assert figure.startswith(b"<?xml") and b64encode(figure).decode() in page and figure == oracle_curves(report)
    assert epoch_rows(report)[0] == ["theta_IA", "1", "2.000", "21.0 (15.0 to 30.0)", "60.0 (50.0 to 65.5)", "3 of 200"]
    assert len(epoch_rows(report)) == 6 and page.count("3 of 200") == 6
    assert "vanilla: epoch 1 loss 2.00, accuracy 21.0, oracle 60.0" in curves_text(report)


def test_a_divergence_is_a_warning_wherever_results_are_read(report: ReportData) -> None:
    results = results_json(report)
    out = StringIO()
    print_results(Console(file=out, width=400), results)
    for text in (render(report), results_markdown(results), out.getvalue(), model_card(report)):
        assert SAID in text.replace("\\", "").replace("\n", " ")
    assert results["oracle"][0]["divergences"][0]["oracle"] == -21.5 and len(results["diverged"]) == 1
    assert "The oracle diverges from the training" in render(report) and NASTY not in render(report)


def test_a_run_without_an_oracle_says_nothing_of_it(tmp_path: Path) -> None:
    report = collect(make_run(tmp_path).inputs, RUN_FILE, "test-0123456789")
    assert report.oracle == () and oracle_curves(report) == b""
    assert "oracle" not in results_json(report) and "The oracle" not in render(report)
