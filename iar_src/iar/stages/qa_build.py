"""QA build: documents -> chunks -> a teacher's questions and answers -> deduplicated, decontaminated splits."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from iar.config import QaBuildSection, RunFile
from iar.errors import UserError
from iar.methods.chunking import chunk_document
from iar.methods.digest import digest_json
from iar.methods.funnel import check_funnel, funnel_table
from iar.methods.offline_teacher import OfflineTeacher
from iar.methods.splits import SPLITS, assign_splits, deduplicate, with_splits
from iar.methods.teaching import Teacher, TeacherOutput, funnel_step
from iar.records import (
    Chunk,
    Document,
    FunnelStep,
    Lineage,
    Outcome,
    QAPair,
    Reject,
    to_json,
    write_json,
    write_records,
)
from iar.services.decontamination import Decontamination, check_lines, clean_documents, clean_questions, write_checks
from iar.services.documents import read_documents
from iar.services.evaluations import general_evaluations
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Build the dataset under `out`; what is dropped on the way stands in rejects.jsonl, counted in funnel.json.

    Raises UserError where the folder has no readable document or a split comes out empty.
    """
    settings = run_file.qa_build
    general = general_evaluations(run_file)
    read, document_rejects = read_documents(Path(run_file.documents.path))
    documents, contaminated, checked_documents = clean_documents(read, general)
    chunks = [chunk for document in documents for chunk in chunk_document(document, settings.chunk_characters)]

    teacher = _teacher(settings, context)
    taught = teacher.build(documents, chunks, settings.max_anchors, context.seed, context.progress.update)

    split_of = assign_splits(chunks, settings.validation_share, settings.test_share, settings.split_salt)
    unique, duplicates = deduplicate(with_splits(taught.pairs, split_of))
    pairs, leaks, checked_questions = clean_questions(unique, documents, general)
    checks = (checked_documents, checked_questions)
    rejects = [*document_rejects, *contaminated, *taught.rejects, *duplicates, *leaks]
    funnel = [
        funnel_step("documents", "document", len(read), document_rejects),
        funnel_step("uncontaminated", "document", len(documents), contaminated),
        funnel_step("chunks", "chunk", len(chunks), []),
        *taught.funnel,
        funnel_step("deduplicated", "question", len(unique), duplicates),
        funnel_step("decontaminated", "question", len(pairs), leaks),
        funnel_step("split", "question", len(pairs), []),
    ]
    check_funnel(funnel, rejects)
    _check_splits(pairs, chunks)

    lineage = _lineage(documents, chunks, pairs)
    _write(out, documents, chunks, taught, pairs, rejects, funnel)
    write_checks(out, checks)
    write_json(out / "dataset.json", {"digest": lineage[-1].digest} | lineage[-1].payload)
    return Outcome(_metrics(documents, chunks, taught, pairs, rejects), _markdown(pairs, funnel, checks), lineage)


def _teacher(settings: QaBuildSection, context: Context) -> Teacher:
    if settings.teacher == "offline":
        return OfflineTeacher()
    from iar.services.llm_teacher import LlmTeacher

    # Replies outlive the work folder: a rerun with another split buys nothing twice.
    return LlmTeacher(settings.teacher, context.state / "llm-cache")


def _check_splits(pairs: Sequence[QAPair], chunks: Sequence[Chunk]) -> None:
    """Refuse a dataset with an empty split, naming what to change."""
    counts = Counter(pair.split for pair in pairs)
    for split in SPLITS:
        if not counts[split]:
            share = "the sum of the shares" if split == "train" else f"qa_build.{split}_share"
            raise UserError(
                f"qa_build: no question in the {split} split ({len(pairs)} questions from {len(chunks)} chunks); "
                f"add documents, lower qa_build.chunk_characters, or change {share} or qa_build.split_salt"
            )


def _write(
    out: Path,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    taught: TeacherOutput,
    pairs: Sequence[QAPair],
    rejects: Sequence[Reject],
    funnel: Sequence[FunnelStep],
) -> None:
    write_records(out / "documents.jsonl", documents)
    write_records(out / "chunks.jsonl", chunks)
    write_records(out / "anchors.jsonl", taught.anchors)
    write_records(out / "skeletons.jsonl", taught.skeletons)
    for split in SPLITS:
        write_records(out / f"{split}.jsonl", (pair for pair in pairs if pair.split == split))
    write_records(out / "rejects.jsonl", rejects)
    write_json(out / "funnel.json", [to_json(step) for step in funnel])


def _metrics(
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    taught: TeacherOutput,
    pairs: Sequence[QAPair],
    rejects: Sequence[Reject],
) -> dict[str, float]:
    counts = {"documents": len(documents), "chunks": len(chunks), "anchors": len(taught.anchors), "pairs": len(pairs)}
    by_split = Counter(pair.split for pair in pairs)
    counts |= {split: by_split[split] for split in SPLITS} | {"rejects": len(rejects)}
    return {name: float(count) for name, count in counts.items()}


def _markdown(pairs: Sequence[QAPair], funnel: Sequence[FunnelStep], checks: Sequence[Decontamination]) -> str:
    by_split = Counter(pair.split for pair in pairs)
    by_type = Counter(pair.question_type for pair in pairs)
    teacher = pairs[0].teacher
    return "\n".join(
        [
            f"**{len(pairs)} questions** by teacher `{teacher}`: "
            + ", ".join(f"{split} {by_split[split]}" for split in SPLITS)
            + "; "
            + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(by_type.items())),
            "",
            funnel_table(funnel),
            "",
            *(f"- {line}" for one in checks for line in check_lines(one.checks)),
        ]
    )


def _lineage(documents: Sequence[Document], chunks: Sequence[Chunk], pairs: Sequence[QAPair]) -> tuple[Lineage, ...]:
    """Return the registry entries: documents, their chunks, the questions about them, and the dataset last."""
    documents_by_id = {document.id: _entry("document", document.source, document) for document in documents}
    chunks_by_id = {
        chunk.id: _entry("chunk", chunk.id, chunk, ("part-of", documents_by_id[chunk.document_id].digest))
        for chunk in chunks
    }
    questions = [_entry("qa", pair.id, pair, ("about", chunks_by_id[pair.chunk_id].digest)) for pair in pairs]
    contents = tuple(("contains", question.digest) for question in questions)
    payload = {"pairs": len(pairs)} | {split: sum(pair.split == split for pair in pairs) for split in SPLITS}
    digest = digest_json({**payload, "contains": [digest for _, digest in contents]})
    dataset = Lineage("dataset", digest, "qa", payload, contents)
    return (*documents_by_id.values(), *chunks_by_id.values(), *questions, dataset)


def _entry(kind: str, name: str, record: Document | Chunk | QAPair, *inputs: tuple[str, str]) -> Lineage:
    """Return a record's entry; the digest is that of the whole record, the payload leaves out long text."""
    whole = to_json(record)
    return Lineage(kind, digest_json(whole), name, {key: whole[key] for key in whole if key != "text"}, inputs)
