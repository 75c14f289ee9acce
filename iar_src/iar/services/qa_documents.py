"""First part of the QA build: the documents that questions are made of, and what must be known of all of them at once.

They are ingested, and freed of those that give away an evaluation; a folder holds the outcome for the parts to come.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.methods.anchors import Corpus
from iar.methods.filter_report import ScorerReport
from iar.records import Document, FunnelStep, from_json, read_records, to_json, write_json, write_records
from iar.services.decontamination import Decontamination, read_checks, read_hits, write_checks
from iar.services.evaluations import general_evaluations
from iar.services.hardware import usable_cores
from iar.services.ingest import DOCUMENTS, FILTER, ingest, keep_sources
from iar.services.qa_decontamination import clean_texts
from iar.services.reject_log import RejectLog

REJECTS, FUNNEL, CORPUS = "rejects.parquet", "funnel.json", "corpus.json"
STEP = "uncontaminated"


def prepare_documents(
    run_file: RunFile,
    out: Path,
    seed: int,
    on_progress: Callable[[int, int], None],
    retracted: frozenset[str] = frozenset(),
) -> None:
    """Write the documents, their sources, the filter's report, the rejects, the account and the checks under `out`.

    For the rule-based teacher the words and titles of the whole corpus too. Raises UserError where no document is kept.
    """
    with RejectLog(out / REJECTS) as rejects:
        ingested = ingest(run_file.documents, out, rejects, seed, on_progress, retracted, usable_cores())
        read = read_records(out / DOCUMENTS, Document)
        cleaned = clean_texts("documents", read, general_evaluations(run_file), STEP)
        rejects.add(cleaned.dropped.values())
        kept = (one for one in read_records(out / DOCUMENTS, Document) if one.id not in cleaned.dropped)
        count = write_records(out / DOCUMENTS, kept)
        keep_sources(out, cleaned.dropped)
        funnel = [*ingested.funnel, rejects.step(STEP, "document", ingested.documents, count)]
    write_checks(out, [cleaned.found])
    if run_file.qa_build.teacher == "offline":
        corpus = Corpus.of(read_records(out / DOCUMENTS, Document))
        write_json(out / CORPUS, {"lower_words": sorted(corpus.lower_words), "titles": corpus.titles})
    write_json(out / FUNNEL, [to_json(step) for step in funnel])


@dataclass(frozen=True)
class Prepared:
    """A folder that `prepare_documents` wrote."""

    folder: Path

    def documents(self) -> Iterator[Document]:
        """Yield the documents in their order."""
        return read_records(self.folder / DOCUMENTS, Document)

    def count(self) -> int:
        """Return how many documents there are."""
        return self.funnel()[-1].kept

    def corpus(self) -> Corpus:
        """Return the words and titles of the whole corpus."""
        facts = self._json(CORPUS)
        return Corpus(frozenset(facts["lower_words"]), tuple(facts["titles"]))

    def funnel(self) -> list[FunnelStep]:
        """Return the account of the documents."""
        return read_funnel(self.folder / FUNNEL)

    def checked(self) -> Decontamination:
        """Return what the documents were checked against."""
        return Decontamination(tuple(read_checks(self.folder)), tuple(read_hits(self.folder)))

    def scorers(self) -> tuple[ScorerReport, ...]:
        """Return the reports of the file filter."""
        return tuple(from_json(ScorerReport, one) for one in self._json(FILTER))

    def _json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


def read_funnel(path: Path) -> list[FunnelStep]:
    """Return the steps that a funnel.json holds."""
    return [from_json(FunnelStep, step) for step in json.loads(path.read_text(encoding="utf-8"))]
