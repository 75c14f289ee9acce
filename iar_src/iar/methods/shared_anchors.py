"""Pairs of chunks from two documents that name the same object: what cross-document questions are asked about."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from iar.methods.digest import digest_text
from iar.methods.textnorm import normalise
from iar.records import Anchor, Chunk


@dataclass(frozen=True)
class Crossing:
    """Two chunks of two documents, and the anchor both have."""

    first: Chunk
    second: Chunk
    anchor: str

    @property
    def id(self) -> str:
        """Names the two chunks."""
        return f"{self.first.id}+{self.second.id}"


def shared_anchors(chunks: Sequence[Chunk], anchors: Sequence[Anchor], most: int) -> list[Crossing]:
    """Return at most `most` crossings among `chunks`, those over the rarest anchors first.

    A chunk is in one crossing only, so that no text is asked about again and again. Dates and amounts link nothing:
    that two texts name one year says nothing about both.
    """
    own = {chunk.id: chunk for chunk in chunks}
    holders: dict[str, dict[str, str]] = defaultdict(dict)
    for anchor in anchors:
        if anchor.chunk_id in own and not any(map(str.isdigit, anchor.text)):
            holders[normalise(anchor.text)].setdefault(anchor.chunk_id, anchor.text)
    crossings: list[Crossing] = []
    used: set[str] = set()
    for name in sorted(filter(None, holders), key=lambda name: (len(holders[name]), name)):
        free = [own[chunk_id] for chunk_id in holders[name] if chunk_id not in used]
        for first, second in _couples(free):
            crossings.append(Crossing(first, second, holders[name][first.id]))
            used |= {first.id, second.id}
    return crossings[:most]


def _couples(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, Chunk]]:
    """Yield disjoint couples of chunks of different documents; which ones, a hash decides."""
    taken = False
    for first, second in pairwise(sorted(chunks, key=lambda chunk: digest_text(chunk.id))):
        taken = not taken and first.document_id != second.document_id
        if taken:
            yield first, second
