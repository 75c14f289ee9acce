"""The length response of the file filter: what share of documents each scorer drops, by their length and language."""

from typing import TYPE_CHECKING

from iar.methods.filter_report import LENGTHS, ScorerReport
from iar.report.plots import INK, MUTED, STYLE, encoded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from iar.report.data import ReportData

COLUMNS = 3
STARTS = (0, *LENGTHS)
# Okabe-Ito colours; a language keeps its colour and marker in all panels.
LANGUAGES = {"en": ("#0072B2", "o"), "zh": ("#D55E00", "s"), "other": (MUTED, "^")}


def length_response(report: "ReportData") -> bytes:
    """Return a panel a scorer as `svg`: share dropped over words a document, dashed by chance; b"" without a report."""
    shown = [one for one in report.scorers if one.length_response]
    if not shown:
        return b""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        rows = -(-len(shown) // COLUMNS)
        figure = Figure(figsize=(8, 1.9 * rows), layout="constrained")
        panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True).flat
        for axes, one in zip(panels, shown, strict=False):
            _draw(axes, one)
        for axes in list(panels)[len(shown) :]:
            axes.set_visible(False)
        figure.supxlabel("Words a document, from", fontsize=9)
        figure.supylabel("Dropped", fontsize=9)
        lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        named = [line for label, line in lines.items() if not str(label).startswith("_")]
        figure.legend(handles=named, loc="outside upper center", ncols=len(named), frameon=False, fontsize=8)
        return encoded(figure, "svg")


def response_text(report: "ReportData") -> str:
    """Describe the figure for those who do not see it."""
    dropping = [one.name for one in report.scorers if one.dropped]
    return (
        "Share of documents dropped over words a document, a panel a scorer and a line a language, and by chance. "
        f"Scorers that drop any: {', '.join(dropping) or 'none'}."
    )


def _draw(axes: "Axes", one: ScorerReport) -> None:
    axes.set_title(one.name, fontsize=9.5, loc="left")
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xticks(range(len(STARTS)), [f"{start:g}" if start < 1000 else f"{start / 1000:g}k" for start in STARTS])
    axes.tick_params(axis="x", labelsize=7.5, rotation=45)
    for language in dict.fromkeys(part.language for part in one.length_response):
        parts = [part for part in one.length_response if part.language == language]
        places = [STARTS.index(part.words_from) for part in parts]
        colour, marker = LANGUAGES.get(language, (INK, "x"))
        axes.plot(
            places, [part.random_dropped_share for part in parts], color=colour, linewidth=1, linestyle=":",
            label=f"{language}, by chance",
        )  # fmt: skip
        axes.plot(
            places, [part.dropped_share for part in parts], color=colour, linewidth=1.4, marker=marker, markersize=4,
            label=language,
        )  # fmt: skip
