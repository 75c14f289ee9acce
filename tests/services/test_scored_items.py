"""Items read by several processes: the same documents and rejects in the same order, and none is lost unsaid."""

import math
from pathlib import Path

import psutil
import pytest

from iar.config import DocumentsSection, FilterSection
from iar.errors import TemporaryError
from iar.services.scored_items import MOST_ITEMS, Scored, scored
from iar.services.sources import Item, items


@pytest.fixture
def found(tmp_path: Path) -> list[Item]:
    """Texts in two languages, one of them empty, and a PDF that is none."""
    for number in range(3 * MOST_ITEMS):
        text = "灯塔位于东海岸。" if number % 3 else f"The mill number {number} was built by Tora Lind in 1846."
        (tmp_path / f"{number}.txt").write_text(text * (number % 5))
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and nothing")
    return [item for item in items(DocumentsSection(path=str(tmp_path))) if isinstance(item, Item)]


def test_alone_and_together_give_the_same_in_the_same_order(found: list[Item]) -> None:
    alone = list(scored(found, FilterSection(), 2, alone=math.inf))
    together = list(scored(found, FilterSection(), 2, alone=0))
    assert together == alone and len(alone) == len(found)
    assert 0 < sum(isinstance(one, Scored) for one in alone) < len(alone)


def test_a_killed_process_ends_the_reading_with_what_to_do(found: list[Item]) -> None:
    here = psutil.Process()
    before = set(here.children(recursive=True))
    reading = scored(found * 20, FilterSection(), 2, alone=0)
    for _ in range(2):
        next(reading)
    for child in set(here.children(recursive=True)) - before:
        child.kill()
    with pytest.raises(TemporaryError, match=r"a process that reads documents was killed.*run again"):
        list(reading)


def test_a_reading_that_is_given_up_leaves_no_process(found: list[Item]) -> None:
    here = psutil.Process()
    reading = scored(found, FilterSection(), 2, alone=0)
    for _ in range(2):
        next(reading)
    assert any("spawn_main" in " ".join(child.cmdline()) for child in here.children(recursive=True))
    reading.close()
    assert not any("spawn_main" in " ".join(child.cmdline()) for child in here.children(recursive=True))
