"""How work grows with its input: a ratio of two times, so that the speed of the machine says nothing."""

import time
from collections.abc import Callable

FACTOR = 8
# Linear work grows eightfold, square work 64-fold; a busy machine lies between.
MOST_GROWTH = 24.0


def growth(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how many times as long the work takes on FACTOR times as large an input; the least of three, CPU time."""
    small, large = (min(_seconds(prepare(times * size)) for _ in range(3)) for times in (1, FACTOR))
    return large / max(small, 1e-3)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
