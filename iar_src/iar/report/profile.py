"""Where in the model the merges moved: a figure over the blocks, and the pick by kind of tensor."""

from typing import TYPE_CHECKING

from iar.records import Candidate, LayerFacts
from iar.report.plots import OPERATORS, STYLE, encoded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from iar.report.data import ReportData

OUTSIDE = "outside"
PANELS = (
    ("distance_to_base", "Distance to $\\theta_0$; of $\\theta_{IA}$ = 1"),
    ("changed_share", "Share changed"),
)


def profile(report: "ReportData") -> bytes:
    """Return both facts of every merge over the transformer blocks as `svg`; b"" where there are none."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = {one.id: one for one in report.candidates if not one.duplicate_of}
    rows = [one for one in report.layers if one.axis == "block" and one.group != OUTSIDE and one.candidate in shown]
    if not rows:
        return b""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        for axes, (fact, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            _draw(axes, fact, rows, shown, report.selection.pick)
            axes.set_title(title, fontsize=9.5, loc="left")
            axes.set_xlabel("Transformer block")
            axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
        return encoded(figure, "svg")


def kinds(report: "ReportData") -> list[LayerFacts]:
    """Return the pick's facts by kind of tensor."""
    return [one for one in report.layers if one.axis == "kind" and one.candidate == report.selection.pick]


def profile_text(report: "ReportData") -> str:
    """Describe the figure for those who do not see it."""
    rows = [one for one in report.layers if one.axis == "block" and one.candidate == report.selection.pick]
    places = "; ".join(f"{one.group} {one.distance_to_base:.2f} and {100 * one.changed_share:.0f} %" for one in rows)
    pick = f" Distance and share of the pick by block: {places}." if rows else ""
    return f"Distance to theta_0 and share of changed weights of each merge over the transformer blocks.{pick}"


def _draw(axes: "Axes", fact: str, rows: list[LayerFacts], shown: dict[str, Candidate], pick: str) -> None:
    """Draw a line a candidate, in its operator's colour and named once an operator; the pick's is thick."""
    named = set[str]()
    for name, candidate in shown.items():
        points = sorted((int(one.group), getattr(one, fact)) for one in rows if one.candidate == name)
        title, _, colour, _ = OPERATORS[candidate.operator]
        label = "" if title in named else title
        named.add(title)
        width = 2.4 if name == pick else 1.0
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=width, label=label or "_")
