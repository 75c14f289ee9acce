"""The parts of the figures that can be wrong without looking wrong."""

from hypothesis import given
from hypothesis import strategies as st

from iar.report.labels import along, box_around, free_offset, overlap
from iar.report.plots import MAX_CURVE_POINTS, smoothed

FRAME = (0.0, 0.0, 400.0, 300.0)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=3000))
def test_a_smoothed_curve_is_short_and_stays_within_its_values(losses: list[float]) -> None:
    curve = smoothed(losses)
    assert 1 <= len(curve) <= MAX_CURVE_POINTS
    assert min(losses) - 1e-9 <= min(curve) and max(curve) <= max(losses) + 1e-9
    if len(losses) <= MAX_CURVE_POINTS:
        assert curve == losses


def test_a_smoothed_curve_of_nothing_is_nothing() -> None:
    assert smoothed([]) == []


@given(st.floats(20, 380), st.floats(20, 280))
def test_a_label_beside_a_lone_point_stays_in_the_frame_and_off_the_point(x: float, y: float) -> None:
    point = box_around(x, y, 11, 11)
    dx, dy = free_offset((x, y), (18, 10), [point], FRAME)
    label = box_around(x + dx, y + dy, 18, 10)
    assert overlap(label, point) == 0 and overlap(label, FRAME) > 18 * 10 - 0.001


def test_labels_of_a_cluster_do_not_cover_each_other() -> None:
    points = [(200.0 + 7 * (place % 3), 150.0 + 6 * (place // 3)) for place in range(9)]
    taken = [box_around(x, y, 11, 11) for x, y in points]
    labels = []
    for x, y in points:
        dx, dy = free_offset((x, y), (18, 10), taken, FRAME)
        labels.append(box_around(x + dx, y + dy, 18, 10))
        taken.append(labels[-1])
    assert all(overlap(a, b) == 0 for place, a in enumerate(labels) for b in labels[:place])


def test_a_line_is_followed_in_steps_and_needs_two_corners() -> None:
    assert list(along([])) == list(along([(1.0, 1.0)])) == []
    assert list(along([(0.0, 0.0), (10.0, 0.0)])) == [(0.0, 0.0), (5.0, 0.0)]
