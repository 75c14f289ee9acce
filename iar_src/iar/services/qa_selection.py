"""What stays of all lessons: each question once, in one split, and nothing in the way of an honest test.

What must be compared with everything is gone through on disk; in memory are a few dozen bytes a question.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from iar.config import RunFile
from iar.errors import PermanentError
from iar.methods.splits import apart, find_repeats, words_digest
from iar.methods.teaching import Lesson
from iar.records import (
    Chunk,
    CrossDocumentPair,
    Document,
    FunnelStep,
    QAPair,
    RecordWriter,
    Retelling,
    write_records,
)
from iar.services.decontamination import Decontamination
from iar.services.earlier_sets import EarlierSets
from iar.services.evaluations import general_evaluations
from iar.services.ingest import DOCUMENTS
from iar.services.qa_across import ask_across
from iar.services.qa_decontamination import clean_questions, clean_texts
from iar.services.qa_documents import Prepared
from iar.services.qa_earlier import earlier_evaluations, keep_retention, learned_questions, learned_texts
from iar.services.qa_lessons import read_lessons
from iar.services.record_file import Both, Chosen, Lines, RecordFile
from iar.services.reject_log import RejectLog
from iar.services.workspace import Context

CHUNKS, ANCHORS, RETELLINGS = "chunks.jsonl", "anchors.jsonl", "retellings.jsonl"
REWRITE_INPUTS = "rewrite_inputs.jsonl"
ASKED = "asked.jsonl"


@dataclass(frozen=True)
class Spread:
    """All lessons as a file a kind of record: the number of each, and of each question `words_digest` of its chunk."""

    counts: Mapping[str, int]
    chunk_words: bytes


@dataclass(frozen=True)
class Selected:
    """What stays: questions, questions over two documents, retellings; how many stayed before the last step of each.

    `crossed`: the account of writing questions over two documents. `earlier`, `retained`: questions about earlier
    document sets, and how many of them are asked again.
    """

    asked: int
    unique: int
    pairs: Chosen[QAPair]
    written: int
    separate: int
    cross: list[CrossDocumentPair]
    crossed: list[FunnelStep]
    retold: int
    retellings: Iterable[Retelling]
    checks: tuple[Decontamination, ...]
    earlier: int
    retained: int


def spread_lessons(prepared: Prepared, shards: Sequence[Path], out: Path, aside: Path, rejects: RejectLog) -> Spread:
    """Write chunks, anchors and rewrite inputs into `out`, questions and retellings `aside`, for not all will stay.

    Raises PermanentError where the shards are not those of these documents.
    """
    places = {
        "chunks": out / CHUNKS, "anchors": out / ANCHORS, "rewrite_inputs": out / REWRITE_INPUTS,
        "pairs": aside / ASKED, "retellings": aside / RETELLINGS,
    }  # fmt: skip
    words = bytearray()
    with ExitStack() as files:
        writers = {kind: files.enter_context(RecordWriter(path)) for kind, path in places.items()}
        for lesson in _checked(prepared, shards):
            for kind, writer in writers.items():
                writer.write(getattr(lesson, kind))
            rejects.add(lesson.rejects)
            of_chunk = {chunk.id: words_digest(chunk.text) for chunk in lesson.chunks}
            words += b"".join(of_chunk[pair.chunk_id] for pair in lesson.pairs)
    return Spread({kind: writer.count for kind, writer in writers.items()}, bytes(words))


def _checked(prepared: Prepared, shards: Sequence[Path]) -> Iterable[Lesson]:
    lessons = read_lessons(shards)
    for document in prepared.documents():
        lesson = next(lessons, None)
        if lesson is None or lesson.document_id != document.id:
            raise PermanentError(
                f"qa-build: the shards have no lesson on document {document.id} in its place; they are of other "
                "documents: delete their artifacts and run again"
            )
        yield lesson


def select(
    run_file: RunFile, prepared: Prepared, shards: Sequence[Path], asked: RecordFile[QAPair], chunk_words: bytes,
    out: Path, aside: Path, context: Context, rejects: RejectLog, sets: EarlierSets,
) -> Selected:  # fmt: skip
    """Return what stays of what `spread_lessons` wrote; what does not is added to `rejects`."""
    general = general_evaluations(run_file)
    repeats = find_repeats(asked, chunk_words)
    rejects.add(repeats.rejects(asked))
    unique = Chosen(asked, repeats.kept)

    chunks = Lines(out / CHUNKS, Chunk)
    crossed = ask_across(run_file.qa_build, prepared, shards, chunks, context)
    separate, cross_repeats = apart(crossed.pairs, unique)

    retold, retellings = Lines(aside / RETELLINGS, Retelling), Lines(out / RETELLINGS, Retelling)
    texts = clean_texts("retellings", retold, general, "augmented_uncontaminated")
    count = write_records(retellings.path, (one for one in retold if one.id not in texts.dropped))

    read = Both[Document | Retelling](Lines(out / DOCUMENTS, Document), retellings)
    known = Both[Document | Retelling](read, learned_texts(sets))
    asked_before = [*general, *earlier_evaluations(sets)]
    questions = clean_questions(Both[QAPair](unique, separate), known, asked_before, learned_questions(sets))
    earlier, forgone = keep_retention(sets, read, out)
    clean = np.fromiter((pair.id not in questions.dropped for pair in asked), bool, len(asked))
    gone = (questions.dropped.values(), crossed.rejects, texts.dropped.values(), cross_repeats, forgone)
    rejects.add(chain.from_iterable(gone))
    if not count:
        retellings.path.unlink()
    return Selected(
        asked=len(asked),
        unique=len(unique),
        pairs=Chosen(asked, repeats.kept & clean),
        written=len(crossed.pairs),
        separate=len(separate),
        cross=[pair for pair in separate if pair.id not in questions.dropped],
        crossed=crossed.funnel,
        retold=count + len(texts.dropped),
        retellings=retellings if count else (),
        checks=(questions.found, texts.found) if count + len(texts.dropped) else (questions.found,),
        earlier=earlier,
        retained=earlier - len(forgone),
    )
