"""The two figures of the report: the domain-general frontier, and the loss curves of the trainings."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from iar.report.data import ReportData, Training
from iar.report.labels import Label, label_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from iar.records import ModelScores

INK, MUTED, GRID, RINGED = "#1b1f24", "#57606a", "#e4e7eb", "#1b1f24"
# Okabe-Ito colours, with a marker each: told apart without colour too.
OPERATORS = {
    "slerp": ("SLERP", "t", "#0072B2", "o"),
    "task_arithmetic": ("Task Arithmetic", "w", "#009E73", "s"),
    "ties": ("TIES", "density", "#D55E00", "^"),
    "dare": ("DARE", "drop", "#AA4499", "D"),
    "dare_ties": ("DARE-TIES", "drop", "#56B4E9", "v"),
    "soup": ("Soup", "w", "#E69F00", "p"),
    "layer_weights": ("Layer weights", "mean w", "#7A5C00", "h"),
    "fisher": ("Fisher weights", "w", "#117733", ">"),
    "set_weights": ("Set weights", "mean w", "#332288", "<"),
}
REFERENCES = {
    "theta_0": ("$\\theta_0$", ", untrained", "X"),
    "earlier": ("earlier $\\theta_{IA}$", ", where this run starts", "8"),
    "vanilla": ("vanilla SFT", "", "P"),
    "theta_IA": ("$\\theta_{IA}$", ", before merging", "*"),
}
# Hollow, so that they are told from references and candidates at a glance.
BASELINES = {"cpt-sft": "v", "budget-match": "<", "replay": ">", "lora": "p", "sdft": "h", "fapm": "d"}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "svg.hashsalt": "iar",
}
MAX_CURVE_POINTS = 400


class Point(NamedTuple):
    """A model in the plane: x domain, y general, each with its interval, in points."""

    id: str
    x: float
    y: float
    x_error: tuple[float, float]
    y_error: tuple[float, float]


def frontier(report: ReportData, image_format: str) -> bytes:
    """Return the frontier on validation as `png` (1400 x 900 pixels) or `svg`."""
    import matplotlib
    from matplotlib.figure import Figure

    points = {scores.model: _point(scores) for scores in report.validation}
    front = sorted((points[name] for name in report.front if name in points), key=lambda point: point.x)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 36 / 7), layout="constrained")
        axes = figure.add_subplot()
        labels = [
            *_draw_references(axes, points),
            *_draw_baselines(axes, points, report.baselines),
            *_draw_candidates(axes, points, report),
        ]
        _draw_front(axes, front)
        _draw_floors(axes, points.get("vanilla"), report.selection.tolerance_points)
        _draw_pick(axes, points.get(report.selection.pick))
        axes.set_title("Domain against general ability on validation, with 95 % intervals", loc="left", fontsize=10)
        axes.set_xlabel("Domain: held-out questions, points")
        axes.set_ylabel("General: mean of IFEval, MMLU, MSBench, points")
        axes.margins(0.05)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, labelspacing=0.75, handletextpad=0.6)
        figure.draw_without_rendering()
        label_points(axes, labels, [(point.x, point.y) for point in front])
        return encoded(figure, image_format)


def loss_curves(report: ReportData) -> bytes:
    """Return the loss of each training against its steps as `svg`: Inject left, Align and vanilla SFT right."""
    import matplotlib
    from matplotlib.figure import Figure

    inject = [training for training in report.trainings if training.model == "theta_I"]
    answers = [training for training in report.trainings if training.model != "theta_I"]
    start = "the earlier run" if report.rolling.sets else "$\\theta_0$"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_losses(left, inject, "Inject: reconstruct the documents", {"theta_I": ("Inject", "#0072B2")})
        names = {
            "theta_IA": ("Align, from $\\theta_I$", "#D55E00"),
            "vanilla": (f"vanilla SFT, from {start}", MUTED),
        }
        _draw_losses(right, answers, "Answer training", names)
        left.set_ylabel("Loss, nats a token")
        return encoded(figure, "svg")


def smoothed(values: Sequence[float]) -> list[float]:
    """Return at most MAX_CURVE_POINTS means of neighbouring values, for curves of any length."""
    size = -(-len(values) // MAX_CURVE_POINTS) or 1
    blocks = [values[start : start + size] for start in range(0, len(values), size)]
    return [sum(block) / len(block) for block in blocks]


def _point(scores: "ModelScores") -> Point:
    domain = scores.suite("domain")
    x_error = (max(0.0, domain.points - domain.low), max(0.0, domain.high - domain.points))
    y_error = (max(0.0, scores.general - scores.general_low), max(0.0, scores.general_high - scores.general))
    return Point(scores.model, domain.points, scores.general, x_error, y_error)


def _draw_references(axes: "Axes", points: dict[str, Point]) -> Iterator[Label]:
    for name, (label, meaning, marker) in REFERENCES.items():
        if name in points:
            _scatter(axes, [points[name]], label + meaning, INK, marker, 140 if marker == "*" else 90)
            yield Label(points[name].x, points[name].y, label, INK)


def _draw_baselines(axes: "Axes", points: dict[str, Point], baselines: Sequence[str]) -> Iterator[Label]:
    for name in baselines:
        if name in points:
            _scatter(axes, [points[name]], name, INK, BASELINES[name], 70, hollow=True)
            yield Label(points[name].x, points[name].y, name, MUTED)


def _draw_candidates(axes: "Axes", points: dict[str, Point], report: ReportData) -> Iterator[Label]:
    """Draw one series an operator, equal weights once; yield the labels: the pick's name, else the hyper-parameter."""
    for operator, (name, parameter, colour, marker) in OPERATORS.items():
        made = [one for one in report.candidates if one.operator == operator and one.id in points]
        drawn = [one for one in made if not one.duplicate_of]
        values = ", ".join(f"{one.value:g}" for one in drawn)
        copies = "".join(f"\n({one.value:g} is {one.duplicate_of})" for one in made if one.duplicate_of)
        if drawn:
            _scatter(
                axes, [points[one.id] for one in drawn], f"{name}, {parameter} {values}{copies}", colour, marker, 46
            )
        for one in drawn:
            picked = one.id == report.selection.pick
            yield Label(points[one.id].x, points[one.id].y, one.id if picked else f"{one.value:g}", colour, picked)


def _scatter(
    axes: "Axes", points: Sequence[Point], label: str, colour: str, marker: str, size: float, hollow: bool = False
) -> None:
    xs, ys = [point.x for point in points], [point.y for point in points]
    x_errors = list(zip(*(point.x_error for point in points), strict=True))
    y_errors = list(zip(*(point.y_error for point in points), strict=True))
    axes.errorbar(xs, ys, xerr=x_errors, yerr=y_errors, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.28, zorder=2)
    face, edge, width = ("white", colour, 1.2) if hollow else (colour, "white", 0.8)
    axes.scatter(xs, ys, s=size, c=face, marker=marker, edgecolors=edge, linewidths=width, label=label, zorder=4)


def _draw_front(axes: "Axes", front: Sequence[Point]) -> None:
    if front:
        xs, ys = [point.x for point in front], [point.y for point in front]
        axes.plot(xs, ys, color=MUTED, linewidth=1.4, zorder=3, label="front of the feasible")


def _draw_floors(axes: "Axes", vanilla: Point | None, tolerance: float) -> None:
    """Mark what a candidate must reach: D(vanilla) - tau and G(vanilla)."""
    if vanilla:
        axes.axvline(vanilla.x - tolerance, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        label = f"floors: vanilla's domain\nless {tolerance:g}, and its general"
        axes.axhline(vanilla.y, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=label)


def _draw_pick(axes: "Axes", point: Point | None) -> None:
    if point:
        ring = {"facecolors": "none", "edgecolors": RINGED, "linewidths": 1.6}
        axes.scatter([point.x], [point.y], s=230, zorder=5, label="the pick", **ring)  # type: ignore[arg-type]


def _draw_losses(axes: "Axes", trainings: Sequence[Training], title: str, names: dict[str, tuple[str, str]]) -> None:
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.set_xlabel("Optimizer step")
    for training in trainings:
        label, colour = names[training.model]
        values = smoothed(training.losses)
        steps = [len(training.losses) * (place + 0.5) / len(values) + 0.5 for place in range(len(values))]
        axes.plot(steps, values, color=colour, linewidth=1.3, label=label)
    for end in _epoch_ends(trainings[0].epochs if trainings else ()):
        axes.axvline(end, color=GRID, linewidth=1.2, zorder=0.5)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(bottom=0)
    if len(trainings) > 1:
        axes.legend(frameon=False, loc="upper right")


def _epoch_ends(epochs: Sequence[int]) -> list[float]:
    return [place + 0.5 for place in range(1, len(epochs)) if epochs[place] != epochs[place - 1]]


def encoded(figure: "Figure", image_format: str) -> bytes:
    """Return the figure's bytes; equal data give equal bytes."""
    buffer = BytesIO()
    metadata = {"Date": None} if image_format == "svg" else {"Software": None}
    figure.savefig(buffer, format=image_format, dpi=175, facecolor="white", metadata=metadata)
    return buffer.getvalue()
