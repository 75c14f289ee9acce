"""Short labels beside the points of a figure, placed so that they cover neither points nor each other."""

from collections.abc import Iterator, Sequence
from math import cos, pi, sin
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINT_RADIUS = 5.5  # typographic points around a marker that stay free
DISTANCES = (11.0, 16.0, 22.0, 30.0, 40.0)
LEADER_FROM = 15.0  # from here on a line shows which point is meant
FONT_SIZE = 8.0

Box = tuple[float, float, float, float]
"""left, bottom, right, top"""


def label_points(axes: "Axes", labels: Sequence[tuple[float, float, str]]) -> None:
    """Write each (x, y, text) near its point; the figure's layout must be final."""
    unit = axes.figure.dpi / 72  # pixels in a typographic point
    places = [tuple(place / unit for place in axes.transData.transform((x, y))) for x, y, _ in labels]
    taken: list[Box] = [box_around(x, y, 2 * POINT_RADIUS, 2 * POINT_RADIUS) for x, y in places]
    frame = tuple(edge / unit for edge in axes.bbox.extents)
    for (x, y, text), place in zip(labels, places, strict=True):
        width, height = text_size(text)
        dx, dy = free_offset(place[0], place[1], width, height, taken, frame)  # type: ignore[arg-type]
        taken.append(box_around(place[0] + dx, place[1] + dy, width, height))
        far = (dx**2 + dy**2) ** 0.5 > LEADER_FROM + width / 2
        leader = {"arrowstyle": "-", "color": "#8c959f", "lw": 0.6, "shrinkA": 0, "shrinkB": 4} if far else None
        axes.annotate(
            text, (x, y), (dx, dy), textcoords="offset points", ha="center", va="center", fontsize=FONT_SIZE,
            arrowprops=leader, zorder=6,
        )  # fmt: skip


def free_offset(
    x: float, y: float, width: float, height: float, taken: Sequence[Box], frame: Box
) -> tuple[float, float]:
    """Return the offset from (x, y), the nearest first, at which a box covers least of `taken` and stays in `frame`."""
    offsets = list(_offsets(width))

    def covered(offset: tuple[float, float]) -> float:
        box = box_around(x + offset[0], y + offset[1], width, height)
        outside = width * height - overlap(box, frame)
        return outside * 4 + sum(overlap(box, other) for other in taken)

    return min(offsets, key=covered)


def _offsets(width: float) -> Iterator[tuple[float, float]]:
    """Yield offsets of a box's centre around a point: right first, then counter-clockwise, nearer ones first."""
    for distance in DISTANCES:
        for turn in (0, 1, 7, 4, 2, 6, 3, 5):
            angle = turn * pi / 4
            yield (distance + width / 2 - 3) * cos(angle), distance * sin(angle)


def box_around(x: float, y: float, width: float, height: float) -> Box:
    """Return the box of this size centred at (x, y)."""
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def overlap(first: Box, second: Box) -> float:
    """Return the area that two boxes share."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def text_size(text: str) -> tuple[float, float]:
    """Return about how wide and high a label is, in typographic points."""
    letters = 3 if text.startswith("$") else len(text)
    return letters * FONT_SIZE * 0.62 + 2, FONT_SIZE * 1.3
