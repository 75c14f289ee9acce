"""How much a run file has to work on, in tokens: counted where its questions are built, else from its documents."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean

from iar.config import DocumentsSection, Endpoint, QaBuildSection, RunFile
from iar.errors import UserError
from iar.methods.chunking import chunk_document
from iar.methods.retelling import MOST_TOKENS, REGISTERS
from iar.records import Chunk, Document, QAPair, Retelling, read_records
from iar.services.asked_suites import Suite, further_suites, general_suites, tokens
from iar.services.ingest import read_documents
from iar.services.sources import is_hub_id, is_remote

# Questions kept, of max_anchors a chunk: the example's 396 of 432 by rules; the paper's 15,008 of 77,224 by an LLM.
KEPT_BY_RULES, KEPT_BY_LLM = 0.92, 0.19
# The means of the example's questions and answers; an LLM answers in paragraphs.
QUESTION_TOKENS, RULE_ANSWER_TOKENS, LLM_ANSWER_TOKENS = 35.0, 31.0, 120.0


@dataclass(frozen=True)
class Workload:
    """Documents as tokens, chunks, and questions by split; `counted` where these are no estimate.

    units: tokens of what each Inject row reconstructs, documents or chunks. retellings: of each text that a teacher
    wrote beside them, a row of its own; cross: questions over two documents, asked in the test alone. further: what is
    asked beside the general suites, by where it is from.
    """

    documents: tuple[float, ...]
    units: tuple[float, ...]
    chunks: int
    train: int
    validation: int
    test: int
    question_tokens: float
    answer_tokens: float
    suites: dict[str, Suite]
    counted: bool
    retellings: tuple[float, ...] = ()
    cross: int = 0
    further: dict[str, Suite] = field(default_factory=dict)

    @property
    def text_tokens(self) -> float:
        """Tokens of all documents."""
        return sum(self.documents)


def workload(run_file: RunFile, data: Path | None, copy: Path | None = None) -> Workload:
    """Return what a run works on; `data` is its finished qa-build artifact, `copy` a folder to count in place of
    documents.path before it is there.

    Raises UserError where documents, or a suite's file of a run on this machine, are not here.
    """
    settings = run_file.qa_build
    if data is not None:
        documents = list(read_records(data / "documents.jsonl", Document))
        chunks = list(read_records(data / "chunks.jsonl", Chunk))
        counts = json.loads((data / "dataset.json").read_text(encoding="utf-8"))
        train, validation, test = (int(counts[split]) for split in ("train", "validation", "test"))
        pairs = list(read_records(data / "train.jsonl", QAPair))
        question, answer = (fmean(tokens(text) for text in texts) for texts in _texts(pairs))
        cross, retold = int(counts.get("cross_document", 0)), data / "retellings.jsonl"
        told = read_records(retold, Retelling) if retold.is_file() else ()
        retellings = tuple(tokens(one.text) for one in told)
    else:
        documents, _ = read_documents(_here(run_file.documents, copy))
        size = (settings.chunk_tokens, lambda text: ceil(tokens(text))) if settings.chunk_tokens else None
        size = size or (settings.chunk_characters, len)
        chunks = [chunk for document in documents for chunk in chunk_document(document, *size)]
        by_llm = isinstance(settings.teacher, Endpoint)
        kept = len(chunks) * settings.max_anchors * (KEPT_BY_LLM if by_llm else KEPT_BY_RULES)
        validation, test = round(kept * settings.validation_share), round(kept * settings.test_share)
        train = round(kept) - validation - test
        question, answer = QUESTION_TOKENS, LLM_ANSWER_TOKENS if by_llm else RULE_ANSWER_TOKENS
        cross = settings.cross_questions if by_llm else 0
        retellings = tuple(_planned_retellings(settings, documents)) if by_llm else ()
    whole = tuple(tokens(document.text) for document in documents)
    units = whole if run_file.inject.unit == "document" else tuple(tokens(chunk.text) for chunk in chunks)
    return Workload(
        whole, units, len(chunks), train, validation, test, question, answer, general_suites(run_file),
        data is not None, retellings, cross, further_suites(run_file),
    )  # fmt: skip


def _planned_retellings(settings: QaBuildSection, documents: Iterable[Document]) -> Iterator[float]:
    """Yield about the tokens of each text that `qa_build.augment` asks for."""
    for document in documents:
        size = tokens(document.text)
        if "paraphrase" in settings.augment:
            parts = max(1, ceil(size / MOST_TOKENS))
            yield from [size / parts] * parts * len(REGISTERS)
        if "relations" in settings.augment:
            yield from [float(min(size, MOST_TOKENS))] * settings.relations_per_document


def _here(documents: DocumentsSection, copy: Path | None) -> DocumentsSection:
    """Return the documents to count. Raises UserError for those of a hub or a store, which may be terabytes."""
    if copy is not None:
        return documents.model_copy(update={"path": str(copy)})
    if is_remote(documents.path) or is_hub_id(documents.path):
        raise UserError(f"documents.path: {documents.path} is not on this machine")
    return documents


def _texts(pairs: list[QAPair]) -> Iterator[list[str]]:
    yield [pair.question for pair in pairs]
    yield [pair.answer for pair in pairs]
