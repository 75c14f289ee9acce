"""The oracle in the report: loss and accuracy of a training beside the score by a judge outside it, by epoch."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from iar.records import OracleWatch, SuiteScore, from_json
from iar.report.tables import points_text
from iar.services.workspace import ORACLE_RECORD

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from iar.report.data import ReportData, Training

LOSS, ACCURACY, SCORE = "#57606a", "#0072B2", "#D55E00"


def read_watches(artifacts: Iterable[Path]) -> Iterator[OracleWatch]:
    """Yield what the oracle found in each of the trainings that it watched."""
    for path in (artifact / ORACLE_RECORD for artifact in artifacts):
        if path.is_file():
            yield from_json(OracleWatch, json.loads(path.read_text(encoding="utf-8")))


def oracle_curves(report: "ReportData") -> bytes:
    """Return a panel a watched training as `svg`: loss left, accuracy and oracle in points right; b"" without any."""
    if not report.oracle:
        return b""
    import matplotlib
    from matplotlib.figure import Figure

    from iar.report.plots import STYLE, encoded

    trainings = {one.model: one for one in report.trainings}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        panels = figure.subplots(1, len(report.oracle), squeeze=False)[0]
        for axes, watch in zip(panels, report.oracle, strict=True):
            _draw(axes, watch, trainings[watch.model])
        panels[0].set_ylabel("Loss, nats a token")
        return encoded(figure, "svg")


def curves_text(report: "ReportData") -> str:
    """Describe the figure for those who do not see it."""
    each = [
        f"{watch.model}: "
        + "; ".join(
            f"epoch {one.epoch} loss {one.loss:.2f}, accuracy {one.accuracy.points:.1f}, oracle {one.oracle.points:.1f}"
            for one in watch.epochs
        )
        for watch in report.oracle
    ]
    return f"Training loss and accuracy beside the oracle's score at the end of each epoch. {'. '.join(each)}."


def epoch_rows(report: "ReportData") -> list[list[str]]:
    """Return model, epoch, loss, accuracy, oracle, unscored replies as text, a row an epoch."""
    return [
        [
            watch.model,
            str(one.epoch),
            f"{one.loss:.3f}",
            _cell(one.accuracy),
            _cell(one.oracle),
            f"{one.oracle.unscored} of {one.oracle.count}",
        ]
        for watch in report.oracle
        for one in watch.epochs
    ]


def _cell(score: SuiteScore) -> str:
    return points_text(vars(score))


def _draw(axes: "Axes", watch: OracleWatch, training: "Training") -> None:
    from iar.report.plots import smoothed

    values = smoothed(training.losses)
    steps = [len(training.losses) * (place + 0.5) / len(values) + 0.5 for place in range(len(values))]
    axes.plot(steps, values, color=LOSS, linewidth=1.2, label="training loss")
    axes.set_title(f"{watch.model}{', diverged' if watch.divergences else ''}", fontsize=9.5, loc="left")
    axes.set_xlabel("Optimizer step")
    axes.set_ylim(bottom=0)
    points = axes.twinx()
    points.set_ylim(0, 100)
    points.set_ylabel("Points")
    points.grid(visible=False)
    ends = [one.step for one in watch.epochs]
    for colour, style, label, scores in (
        (ACCURACY, "--", "accuracy, by rule", [one.accuracy for one in watch.epochs]),
        (SCORE, "-", f"oracle {watch.judge}", [one.oracle for one in watch.epochs]),
    ):
        means = [one.points for one in scores]
        errors = [
            [max(0.0, one.points - one.low) for one in scores],
            [max(0.0, one.high - one.points) for one in scores],
        ]
        points.errorbar(ends, means, yerr=errors, color=colour, linestyle=style, marker="o", markersize=4, label=label)
    lines = [*axes.get_legend_handles_labels()[0], *points.get_legend_handles_labels()[0]]
    points.legend(handles=lines, frameon=False, fontsize=7.5, loc="upper center")
