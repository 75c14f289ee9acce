"""Items read and scored, in their order; where that takes long, by several processes at once."""

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from iar.config import FilterSection
from iar.errors import TemporaryError
from iar.methods.scorers import SCORERS, Reading
from iar.records import Document, Reject, SourceFacts
from iar.services.documents import convert
from iar.services.guards import end_with
from iar.services.sources import Item

# Processes take two seconds to start, and a small set should be done by then.
ALONE_SECONDS = 4.0
# What is handed over at once, and how much of it waits a process: memory does not grow with the set.
MOST_ITEMS, MOST_SIZE = 64, 1 << 19
WAITING = 3
# One process reads and writes for all the others: more would wait for it.
MOST_PROCESSES = 8


@dataclass(frozen=True)
class Scored:
    """A document, where it is from, and what the scorers see in it: `scores` in the order of SCORERS."""

    document: Document
    facts: SourceFacts
    folded: str
    words: int
    language: str
    scores: tuple[float, ...]


def scored(
    found: Iterable[Item | Reject], settings: FilterSection, processes: int, alone: float = ALONE_SECONDS
) -> Iterator[Scored | Reject]:
    """Yield each item as a scored document, or the Reject that says why it gives none, in the order of `found`.

    processes: how many read once this one has read for `alone` seconds; they import the main module again, so with
    more than one it must be guarded (`if __name__ == "__main__"`). Raises TemporaryError where one was killed.
    """
    until = time.monotonic() + alone
    found = iter(found)
    for item in found:
        yield _score(item, settings)
        if processes > 1 and time.monotonic() > until:
            yield from _together(found, settings, min(processes, MOST_PROCESSES))


def _score(item: Item | Reject, settings: FilterSection) -> Scored | Reject:
    converted = item if isinstance(item, Reject) else convert(item)
    if isinstance(converted, Reject):
        return converted
    document, facts = converted
    reading = Reading(document.text)
    scores = tuple(scorer.score(reading, settings) for scorer in SCORERS)
    return Scored(document, facts, reading.folded, len(reading.words), reading.language, scores)


def _score_all(part: list[Item | Reject], settings: FilterSection) -> list[Scored | Reject]:
    return [_score(item, settings) for item in part]


def _together(found: Iterable[Item | Reject], settings: FilterSection, processes: int) -> Iterator[Scored | Reject]:
    # Processes that are forks would share open databases and locks with this one.
    start = multiprocessing.get_context("spawn")
    waiting: deque[Future[list[Scored | Reject]]] = deque()
    with ProcessPoolExecutor(processes, start, end_with, (os.getpid(),)) as pool:
        try:
            for part in _parts(found):
                waiting.append(pool.submit(_score_all, part, settings))
                if len(waiting) >= WAITING * processes:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise TemporaryError(
                "documents: a process that reads documents was killed, perhaps for its memory: run again"
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def _parts(found: Iterable[Item | Reject]) -> Iterator[list[Item | Reject]]:
    part: list[Item | Reject] = []
    size = 0
    for item in found:
        part.append(item)
        size += len(item.content) if isinstance(item, Item) else 0
        if len(part) >= MOST_ITEMS or size >= MOST_SIZE:
            yield part
            part, size = [], 0
    if part:
        yield part
