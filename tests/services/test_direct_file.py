"""A file written around the page cache holds what was appended to it, whatever the file system takes."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iar.services import direct_file
from iar.services.direct_file import DIRECT, DirectFile

BLOCK = 4096


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "BUFFER_BYTES", 2 * BLOCK)


def written(path: Path, pieces: list[bytes]) -> bytes:
    file = DirectFile(path, sum(map(len, pieces)))
    for piece in pieces:
        file.write(piece)
    file.close()
    file.close()
    return path.read_bytes()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0, 1, 7, BLOCK - 1, BLOCK, 2 * BLOCK, 5 * BLOCK + 3]), max_size=8))
def test_pieces_of_any_length_are_joined(tmp_path: Path, lengths: list[int]) -> None:
    pieces = [os.urandom(length) for length in lengths]
    assert written(tmp_path / "f", pieces) == b"".join(pieces)


@pytest.mark.skipif(not DIRECT, reason="a system without direct writes")
@pytest.mark.parametrize("refused", ["open", "write"])
def test_a_file_system_that_refuses_direct_writes_gets_others(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"open": os.open, "write": os.write}
    refusals = []

    def refuse_open(path: Any, flags: int, mode: int) -> int:
        if flags & DIRECT:
            refusals.append("open")
            raise OSError(errno.EINVAL, "Invalid argument")
        return asked["open"](path, flags, mode)

    def refuse_write(descriptor: int, data: Any) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
            refusals.append("write")
            raise OSError(errno.EINVAL, "Invalid argument")
        return asked["write"](descriptor, data)

    monkeypatch.setattr(direct_file.os, refused, {"open": refuse_open, "write": refuse_write}[refused])
    pieces = [os.urandom(3 * BLOCK + 5), os.urandom(BLOCK)]
    assert written(tmp_path / "f", pieces) == b"".join(pieces)
    assert set(refusals) <= {refused}


def test_a_short_write_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(direct_file.os, "write", lambda descriptor, data: whole(descriptor, data[:BLOCK]))
    pieces = [os.urandom(5 * BLOCK + 9)]
    assert written(tmp_path / "f", pieces) == pieces[0]


def test_a_full_disk_is_raised_and_the_file_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DirectFile(tmp_path / "f", 3 * BLOCK)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct_file.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(os.urandom(3 * BLOCK))
    with pytest.raises(OSError, match="No space left"):
        file.close()
    file.close()
