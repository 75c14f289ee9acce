"""From a place with documents to those that are kept: read, filtered, freed of duplicates, each step accounted for.

Two passes, neither of which holds a text but the one at hand: the first reads, scores and writes the documents that
pass aside; the second finds the duplicates among their signatures and copies the rest.
"""

import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iar.config import DocumentsSection, FilterSection
from iar.errors import UserError
from iar.methods.filter_report import ScorerReport, report
from iar.methods.near_duplicates import find_twins
from iar.methods.scorers import LANGUAGES, NEAR_DUPLICATE, SCORERS
from iar.methods.textnorm import jaccard
from iar.records import (
    Document,
    FunnelStep,
    Reject,
    SourceFacts,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.documents import convert
from iar.services.ingest_aside import DIGEST_BYTES, Aside, SignatureFile
from iar.services.reject_log import RejectLog, read_rejects
from iar.services.scored_items import Scored, scored
from iar.services.sources import KINDS, STEP, Item, items, what_to_mend
from iar.services.withheld import RETRACTED, Withheld

FILTERED = "filtered"
DISTINCT = "distinct"
DOCUMENTS, SOURCES, FILTER = "documents.jsonl", "sources.jsonl", "filter.json"
ASIDE = "ingest.part"
NGRAM_SETS = 8


@dataclass(frozen=True)
class Ingested:
    """What came of a document set: the account, and the reports of the filter's scorers."""

    documents: int
    characters: int
    funnel: tuple[FunnelStep, ...]
    scorers: tuple[ScorerReport, ...]


def ingest(
    settings: DocumentsSection,
    out: Path,
    rejects: RejectLog,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    retracted: frozenset[str] = frozenset(),
    processes: int = 1,
) -> Ingested:
    """Write documents.jsonl, sources.jsonl and filter.json under `out`; what is dropped goes to `rejects`.

    Files and rows whose SHA-256 is among `retracted` are dropped, whatever they are called; withheld.json tells which.
    processes: how many read a large set, as `scored` says.

    Raises UserError where nothing is kept, and what `items` raises.
    """
    folder = out / ASIDE
    shutil.rmtree(folder, ignore_errors=True)  # a killed try's
    folder.mkdir()
    withheld = Withheld(retracted)
    with Aside(folder) as aside:
        found = scored(items(settings, withheld), settings.filter, processes)
        read = _read(settings, found, aside, rejects, on_progress, withheld)
    kept, nearest = _distinct(settings.filter.near_duplicate, aside, rejects)
    count = int(kept.sum())
    funnel = (
        rejects.step(STEP, "document", read.items, read.documents),
        rejects.step(FILTERED, "document", read.documents, len(aside)),
        rejects.step(DISTINCT, "document", len(aside), count),
    )
    if not count:
        shutil.rmtree(folder)
        raise UserError(_nothing_kept(settings.path, funnel, read.to_mend))
    _copy(aside.documents, kept, out / DOCUMENTS)
    _copy(aside.sources, kept, out / SOURCES)
    shutil.rmtree(folder)
    scorers = _reports(settings.filter, read, aside, kept, nearest, seed)
    write_json(out / FILTER, [to_json(one) for one in scorers])
    withheld.write(out)
    return Ingested(count, int(np.array(aside.characters)[kept].sum()), funnel, scorers)


def keep_sources(out: Path, dropped: Container[str]) -> None:
    """Leave out of sources.jsonl the lines of the documents that were `dropped` after reading, by their id."""
    facts = read_records(out / SOURCES, SourceFacts)
    write_records(out / SOURCES, (one for one in facts if one.document_id not in dropped))


def read_documents(settings: DocumentsSection) -> tuple[list[Document], list[Reject]]:
    """Return the documents that a run would keep, and what it would leave out, in memory.

    Raises what `ingest` raises.
    """
    with tempfile.TemporaryDirectory(prefix="iar-ingest-") as name:
        folder = Path(name)
        with RejectLog(folder / "rejects.parquet") as rejects:
            ingest(settings, folder, rejects, 0)
        return list(read_records(folder / DOCUMENTS, Document)), list(read_rejects(folder / "rejects.parquet"))


def any_readable(settings: DocumentsSection) -> bool:
    """Tell whether some item gives text; items are read only until one does."""
    return any(isinstance(item, Item) and not isinstance(convert(item), Reject) for item in items(settings))


@dataclass
class _Read:
    """The first pass in figures: a value a document, in the order in which they came."""

    items: int = 0
    words: "array[int]" = field(default_factory=lambda: array("q"))
    collections: "array[int]" = field(default_factory=lambda: array("q"))
    scores: "array[float]" = field(default_factory=lambda: array("d"))
    names: dict[str, int] = field(default_factory=dict)
    languages: "array[int]" = field(default_factory=lambda: array("q"))
    language_names: dict[str, int] = field(default_factory=dict)
    to_mend: str = ""

    @property
    def documents(self) -> int:
        """Items that gave a document."""
        return len(self.words)


def _read(
    settings: DocumentsSection,
    items_read: Iterable[Scored | Reject],
    aside: Aside,
    rejects: RejectLog,
    on_progress: Callable[[int, int], None] | None,
    withheld: Withheld,
) -> _Read:
    read = _Read()
    for found in items_read:
        read.items += 1
        if on_progress:
            on_progress(read.items, read.items + 1)  # how many there are is known at the end
        if isinstance(found, Reject):
            rejects.add([found])
            read.to_mend = read.to_mend or what_to_mend(found)
            continue
        document, facts = found.document, found.facts
        if withheld.holds(document.source_digest):
            rejects.add([Reject(STEP, document.source, RETRACTED, document.title)])
            continue
        passed = [one.passes(score, settings.filter) for one, score in zip(SCORERS, found.scores, strict=True)]
        failed = passed.index(False) if False in passed else -1
        read.words.append(found.words)
        read.collections.append(read.names.setdefault(facts.collection, len(read.names)))
        language = found.language if found.language in LANGUAGES else "other"
        read.languages.append(read.language_names.setdefault(language, len(read.language_names)))
        read.scores.extend(found.scores)
        if failed >= 0:
            reason, score = SCORERS[failed].reason, round(found.scores[failed], 6)
            rejects.add([Reject(FILTERED, document.source, reason, document.text[:200], score=score)])
        else:
            facts = replace(facts, licence=facts.licence or settings.licence, language=found.language)
            aside.add(document, facts, found.folded, read.documents - 1)
    return read


def _distinct(threshold: float, aside: Aside, rejects: RejectLog) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Return which documents stay, and each one's similarity to an earlier one."""
    if not len(aside):
        return np.ones(0, bool), np.zeros(0, np.float32)
    digests = np.fromfile(aside.digests, f"V{DIGEST_BYTES}")

    ngrams = lru_cache(maxsize=NGRAM_SETS)(aside.ngrams)
    twins, nearest = find_twins(
        SignatureFile(aside), digests, threshold, lambda one, two: jaccard(ngrams(one), ngrams(two))
    )
    kept = np.ones(len(aside), bool)
    for number, twin in sorted(twins.items()):
        kept[number] = False
        dropped, survivor = aside.document(number), aside.document(twin.survivor)
        reason = "duplicate document" if twin.similarity == 1 else NEAR_DUPLICATE.reason
        score = round(twin.similarity, 6)
        rejects.add([Reject(DISTINCT, dropped.source, reason, dropped.title, survivor.source, "duplicate", score)])
    return kept, nearest


def _copy(source: Path, kept: NDArray[np.bool_], path: Path) -> None:
    """Write the lines of the documents that stay."""
    part = path.with_suffix(path.suffix + ".part")
    with source.open("rb") as lines, part.open("wb") as file:
        file.writelines(line for keeps, line in zip(kept, lines, strict=True) if keeps)
    part.replace(path)


def _reports(
    settings: FilterSection,
    read: _Read,
    aside: Aside,
    kept: NDArray[np.bool_],
    nearest: NDArray[np.float32],
    seed: int,
) -> tuple[ScorerReport, ...]:
    """Return a report a scorer: of the rules over all that was read, of duplicates over what passed the rules."""
    scores = np.array(read.scores, np.float64).reshape(-1, len(SCORERS))
    words, collections = np.array(read.words, np.int64), np.array(read.collections, np.int64)
    languages = np.array(read.languages, np.int64)
    passes = np.stack([one.which_pass(scores[:, place], settings) for place, one in enumerate(SCORERS)], axis=1)
    rules = [
        report(
            one,
            one.threshold(settings),
            scores[:, place],
            ~passes[:, place],
            np.logical_and.reduce(np.delete(passes, place, axis=1), axis=1),
            words,
            collections,
            list(read.names),
            languages,
            list(read.language_names),
            seed,
        )
        for place, one in enumerate(SCORERS)
    ]
    passed = np.array(aside.read_at, np.int64)
    duplicates = report(
        NEAR_DUPLICATE,
        settings.near_duplicate,
        nearest,
        ~kept,
        np.ones(len(kept), bool),
        words[passed],
        collections[passed],
        list(read.names),
        languages[passed],
        list(read.language_names),
        seed,
    )
    return (*rules, duplicates)


def _nothing_kept(place: str, funnel: Sequence[FunnelStep], to_mend: str) -> str:
    reasons = Counter({reason: count for step in funnel for reason, count in step.dropped.items()}).most_common(3)
    left_out = "; ".join(f"{count} x {reason}" for reason, count in reasons)
    return (
        f"documents.path: {place} has no readable document ({KINDS}); "
        f"{f'left out: {left_out}; ' if left_out else ''}"
        f"{f'{to_mend}; or ' if to_mend else ''}put documents there, point documents.path elsewhere, or loosen "
        "documents.filter"
    )
