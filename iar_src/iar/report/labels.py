"""Short labels beside the points of a figure, placed so that they cover neither points nor each other."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import cos, hypot, pi, sin
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINT_RADIUS = 5.5  # typographic points around a marker that stay free
DISTANCES = (11.0, 16.0, 22.0, 30.0, 40.0)
LEADER_FROM = 15.0  # from here on a line shows which point is meant
FONT_SIZE = 8.0
LINE_STEP = 5.0

Box = tuple[float, float, float, float]
"""left, bottom, right, top"""


class Label(NamedTuple):
    """A text for the point (x, y) in the units of the axes; `bold` for the one that matters most."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def label_points(axes: "Axes", labels: Sequence[Label], line: Sequence[tuple[float, float]] = ()) -> None:
    """Write each label near its point, clear of the corners' `line`; the figure's layout must be final."""
    from matplotlib.patheffects import withStroke

    unit = axes.figure.dpi / 72  # pixels in a typographic point

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y)) / unit
        return float(across), float(up)

    places = [place(label.x, label.y) for label in labels]
    taken = [box_around(x, y, 2 * POINT_RADIUS, 2 * POINT_RADIUS) for x, y in places]
    taken += [box_around(x, y, LINE_STEP, LINE_STEP) for x, y in along([place(*corner) for corner in line])]
    left, bottom, right, top = (float(edge) / unit for edge in axes.bbox.extents)
    for label, (x, y) in zip(labels, places, strict=True):
        width, height = text_size(label.text, label.bold)
        dx, dy = free_offset((x, y), (width, height), taken, (left, bottom, right, top), 5.0 if label.bold else 0.0)
        taken.append(box_around(x + dx, y + dy, width, height))
        far = hypot(dx, dy) > LEADER_FROM + width / 2
        leader = {"arrowstyle": "-", "color": label.colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 4} if far else None
        axes.annotate(
            label.text, (label.x, label.y), (dx, dy), textcoords="offset points", ha="center", va="center", zorder=6,
            fontsize=FONT_SIZE, fontweight="bold" if label.bold else "normal", color=label.colour, arrowprops=leader,
            path_effects=[withStroke(linewidth=2.2, foreground="white")],
        )  # fmt: skip


def along(corners: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield places along the line through `corners`, LINE_STEP apart."""
    for (x, y), (next_x, next_y) in pairwise(corners):
        count = max(1, round(hypot(next_x - x, next_y - y) / LINE_STEP))
        for step in range(count):
            yield x + (next_x - x) * step / count, y + (next_y - y) * step / count


def free_offset(
    point: tuple[float, float], size: tuple[float, float], taken: Sequence[Box], frame: Box, further: float = 0.0
) -> tuple[float, float]:
    """Return the offset from `point`, the nearest first, at which a box in `frame` covers least of `taken`."""
    width, height = size

    def covered(offset: tuple[float, float]) -> float:
        box = box_around(point[0] + offset[0], point[1] + offset[1], width, height)
        outside = width * height - overlap(box, frame)
        return round(outside * 4 + sum(overlap(box, other) for other in taken), 3)

    return min(_offsets(width, further), key=covered)


def _offsets(width: float, further: float) -> Iterator[tuple[float, float]]:
    """Yield offsets of a box's centre around a point: between the error bars first, nearer ones first."""
    for distance in DISTANCES:
        reach = distance + further
        for turn in (1, 7, 3, 5, 0, 4, 2, 6):
            angle = turn * pi / 4
            yield (reach + width / 2 - 3) * cos(angle), reach * sin(angle)


def box_around(x: float, y: float, width: float, height: float) -> Box:
    """Return the box of this size centred at (x, y)."""
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def overlap(first: Box, second: Box) -> float:
    """Return the area that two boxes share."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def text_size(text: str, bold: bool = False) -> tuple[float, float]:
    """Return about how wide and high a label is, in typographic points."""
    letters = 3 if text.startswith("$") else len(text)
    return letters * FONT_SIZE * (0.7 if bold else 0.62) + 2, FONT_SIZE * 1.3
