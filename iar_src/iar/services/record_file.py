"""Records on disk as sequences that cost little memory, however long the records are."""

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from iar.records import Record, from_json, read_records

Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True)
class Lines(Generic[Record]):
    """The records of a file, which may be gone through again and again."""

    path: Path
    record_type: type[Record]

    def __iter__(self) -> Iterator[Record]:
        return read_records(self.path, self.record_type)


@dataclass(frozen=True)
class Chosen(Generic[Item]):
    """Those of many items that are kept, which may be gone through again and again."""

    items: Iterable[Item]
    kept: NDArray[np.bool_]

    def __iter__(self) -> Iterator[Item]:
        return compress(self.items, self.kept)

    def __len__(self) -> int:
        return int(self.kept.sum())


@dataclass(frozen=True)
class Both(Generic[Item]):
    """The items of two sources, one after the other, which may be gone through again and again."""

    first: Iterable[Item]
    second: Iterable[Item]

    def __iter__(self) -> Iterator[Item]:
        return chain(self.first, self.second)


class RecordFile(Generic[Record]):
    """An open file of JSON lines as a sequence: 8 bytes of memory a record, which is read when it is asked for."""

    def __init__(self, path: Path, record_type: type[Record]) -> None:
        self._path, self._type = path, record_type
        self._starts = array("q", [0])
        with path.open("rb") as lines:
            for line in lines:
                self._starts.append(self._starts[-1] + len(line))
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[Record]:
        return read_records(self._path, self._type)

    def __getitem__(self, place: int) -> Record:
        start, end = self._starts[place], self._starts[place + 1]
        return from_json(self._type, json.loads(os.pread(self._file, end - start, start)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
