"""Records on disk as sequences."""

from pathlib import Path

import numpy as np
import pytest

from iar.records import Anchor, RecordWriter, write_records
from iar.services.record_file import Both, Chosen, Lines, RecordFile

ANCHORS = [Anchor(f"c{place}", "name", text, 0, len(text)) for place, text in enumerate(("Velm", "渡し場", 'a "b"\n'))]


def test_records_come_back_by_place_and_as_often_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "anchors.jsonl"
    write_records(path, ANCHORS)
    with RecordFile(path, Anchor) as file:
        assert (len(file), file[2], file[0], list(file), list(file)) == (3, ANCHORS[2], ANCHORS[0], ANCHORS, ANCHORS)
        chosen = Chosen(file, np.array([True, False, True]))
        assert (len(chosen), list(chosen), list(chosen)) == (2, [ANCHORS[0], ANCHORS[2]], [ANCHORS[0], ANCHORS[2]])
        both = Both(chosen, Lines(path, Anchor))
        assert list(both) == list(both) == [ANCHORS[0], ANCHORS[2], *ANCHORS]


def test_a_file_that_was_not_written_to_the_end_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RecordWriter(tmp_path / "anchors.jsonl") as writer:
        writer.write(ANCHORS)
        1 / 0  # noqa: B018
    assert not (tmp_path / "anchors.jsonl").exists()
