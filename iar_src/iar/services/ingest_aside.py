"""The documents that pass the file filter, on disk until it is known which of them are duplicates."""

import json
import mmap
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from iar.methods.digest import digest_text
from iar.methods.near_duplicates import PERMUTATIONS, signatures
from iar.methods.textnorm import ngrams_of
from iar.records import Document, SourceFacts, from_json, to_json

# Signatures are made of so many characters at once: enough to be quick, little beside the libraries in memory.
BATCH_CHARACTERS = 1 << 19
DIGEST_BYTES = 16
ROWS_IN_MEMORY = 512


class Aside:
    """The documents that pass the filter, on disk until it is known which are duplicates."""

    def __init__(self, folder: Path) -> None:
        self.documents, self.sources = folder / "documents", folder / "sources"
        self.folded, self.signatures, self.digests = folder / "folded", folder / "signatures", folder / "digests"
        self.ends, self.folded_ends = array("q"), array("q")
        self.read_at, self.characters = array("q"), array("q")
        self._unsigned: list[str] = []
        self._waiting = 0
        self._files: dict[Path, BinaryIO] = {}

    def __len__(self) -> int:
        return len(self.ends)

    def __enter__(self) -> "Aside":
        paths = (self.documents, self.sources, self.folded, self.signatures, self.digests)
        self._files = {path: path.open("wb") for path in paths}
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        for file in self._files.values():
            file.close()

    def add(self, document: Document, facts: SourceFacts, folded: str, number: int) -> None:
        """Keep a document, which was the `number`-th that was read, for the second pass."""
        for path, record in ((self.documents, document), (self.sources, facts)):
            self._files[path].write((json.dumps(to_json(record), ensure_ascii=False) + "\n").encode())
        self._files[self.folded].write(folded.encode())
        self.ends.append(self._files[self.documents].tell())
        self.folded_ends.append(self._files[self.folded].tell())
        self._files[self.digests].write(bytes.fromhex(digest_text(folded)[: 2 * DIGEST_BYTES]))
        self.read_at.append(number)
        self.characters.append(len(document.text))
        self._unsigned.append(folded)
        self._waiting += len(folded)
        if self._waiting >= BATCH_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if self._unsigned:
            self._files[self.signatures].write(signatures(self._unsigned).tobytes())
            self._unsigned, self._waiting = [], 0

    def document(self, number: int) -> Document:
        """Read a document back."""
        return from_json(Document, json.loads(_slice(self.documents, self.ends, number)))

    def ngrams(self, number: int) -> frozenset[str]:
        """Return the character 5-grams of a document."""
        return ngrams_of(_slice(self.folded, self.folded_ends, number).decode())


class SignatureFile:
    """The signatures of the documents aside, at least one, of which little stays in memory at a time."""

    def __init__(self, aside: Aside) -> None:
        with aside.signatures.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._rows = np.frombuffer(self._map, np.uint32).reshape(len(aside), PERMUTATIONS)
        self._looked_at = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = self._rows[index].copy()
        # A row brings its whole neighbourhood into memory, and it stays until the system is told otherwise.
        self._looked_at += found.size // PERMUTATIONS + 1
        if self._looked_at > ROWS_IN_MEMORY:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._looked_at = 0
        return found


def _slice(path: Path, ends: "array[int]", number: int) -> bytes:
    """Return the `number`-th piece of a file of pieces."""
    start = ends[number - 1] if number else 0
    with path.open("rb") as file:
        file.seek(start)
        return file.read(ends[number] - start)
