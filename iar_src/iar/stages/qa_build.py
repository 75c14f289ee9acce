"""QA build: documents -> chunks -> a teacher's questions and answers -> deduplicated, decontaminated splits."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iar.config import QaBuildSection, RunFile
from iar.errors import PermanentError, UserError
from iar.methods.chunking import chunk_document
from iar.methods.digest import digest_json
from iar.methods.filter_report import filter_table
from iar.methods.funnel import check_funnel, funnel_table
from iar.methods.offline_teacher import OfflineTeacher
from iar.methods.splits import SPLITS, apart, assign_splits, deduplicate, with_splits
from iar.methods.teaching import Teacher, TeacherOutput, funnel_step
from iar.records import (
    Anchor,
    Chunk,
    CrossDocumentPair,
    Document,
    FunnelStep,
    Lineage,
    Outcome,
    QAPair,
    Retelling,
    SourceFacts,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.dataset_lineage import (
    WRITTEN_BY,
    anchor_entries,
    document_entry,
    rejects_entry,
    retelling_words,
    source_entries,
    teacher_entries,
    version_facts,
)
from iar.services.decontamination import Decontamination, check_lines, clean_questions, clean_texts, write_checks
from iar.services.evaluations import general_evaluations
from iar.services.ingest import DOCUMENTS, Ingested, ingest, keep_sources
from iar.services.models import load_tokenizer
from iar.services.registry_records import DRAWN_FROM
from iar.services.reject_log import RejectLog
from iar.services.workspace import Context

# Beside the test: locked like it, and scored apart.
CROSS_FILE = "test-cross-document.jsonl"
LOCKED = ("question", "answer", "key", "aliases", "anchor")


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Build the dataset under `out`; what is dropped on the way stands in rejects.parquet, counted in funnel.json.

    Raises UserError where no document is kept or a split comes out empty.
    """
    path = out / "rejects.parquet"
    with RejectLog(path) as rejects:
        outcome = _build(run_file, inputs, out, context, rejects)
    left_out = rejects_entry(path, rejects.counts, outcome.lineage[-1].digest)
    return replace(outcome, lineage=(*outcome.lineage, left_out))


def _build(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context, rejects: RejectLog) -> Outcome:
    settings = run_file.qa_build
    general = general_evaluations(run_file)
    ingested = ingest(run_file.documents, out, rejects, context.seed, context.progress.update, context.retracted())
    read = list(read_records(out / DOCUMENTS, Document))
    documents, contaminated, checked_documents = clean_texts("documents", read, general, "uncontaminated")
    facts = keep_sources(out, documents)
    count_tokens = _token_counter(settings, inputs)
    budget = (settings.chunk_tokens, count_tokens) if settings.chunk_tokens else (settings.chunk_characters, len)
    chunks = [chunk for document in documents for chunk in chunk_document(document, *budget)]
    split_of = assign_splits(chunks, settings.validation_share, settings.test_share, settings.split_salt)

    teacher, seed, update = _teacher(settings, context), context.seed, context.progress.update
    taught = teacher.build(documents, chunks, settings.max_anchors, seed, update)
    held_out = [chunk for chunk in chunks if split_of[chunk.id] == "test"]
    further = teacher.further(documents, chunks, taught.anchors, held_out, seed, count_tokens, update)
    step = "augmented_uncontaminated"
    retellings, retold_leaks, checked_retellings = clean_texts("retellings", further.retellings, general, step)

    unique, duplicates = deduplicate(with_splits(taught.pairs, split_of), chunks)
    separate, repeats = apart(further.cross, unique)
    clean, leaks, checked_questions = clean_questions([*unique, *separate], [*documents, *retellings], general)
    cross = [pair for pair in clean if isinstance(pair, CrossDocumentPair)]
    pairs = [pair for pair in clean if not isinstance(pair, CrossDocumentPair)]
    checks = [checked_documents, checked_questions, *([checked_retellings] if further.retellings else [])]
    rejects.add([*contaminated, *taught.rejects, *duplicates, *leaks, *further.rejects, *retold_leaks, *repeats])
    funnel = [
        *ingested.funnel,
        funnel_step("uncontaminated", "document", len(documents), contaminated),
        funnel_step("chunks", "chunk", len(chunks), []),
        *taught.funnel,
        funnel_step("deduplicated", "question", len(unique), duplicates),
        funnel_step("decontaminated", "question", len(pairs), leaks),
        funnel_step("split", "question", len(pairs), []),
        *further.funnel,
    ]
    if further.retellings:
        funnel.append(funnel_step(step, "retelling", len(retellings), retold_leaks))
    if further.cross:
        both = "question over two documents"
        funnel.append(funnel_step("cross_deduplicated", both, len(separate), repeats))
        funnel.append(funnel_step("cross_decontaminated", both, len(cross), leaks))
    check_funnel(funnel, rejects.counts)
    _check_splits(pairs, chunks, settings)

    lineage = _lineage(documents, facts, chunks, taught.anchors, [*pairs, *cross], retellings, settings.split_salt)
    _write(out, documents, chunks, taught, pairs, funnel)
    write_checks(out, checks)
    if cross:
        write_records(out / CROSS_FILE, cross)
    if retellings:
        write_records(out / "retellings.jsonl", retellings)
    contents = {name: count for name, count in lineage[-1].payload.items() if isinstance(count, int)}
    write_json(out / "dataset.json", {"digest": lineage[-1].digest} | contents)
    metrics = _metrics(documents, chunks, taught, contents, rejects)
    return Outcome(metrics, _markdown(pairs, funnel, ingested, checks), lineage)


def _teacher(settings: QaBuildSection, context: Context) -> Teacher:
    if settings.teacher == "offline":
        return OfflineTeacher(settings.rewrite_inputs)
    from iar.services.llm_teacher import LlmTeacher

    # Replies outlive the work folder: a rerun with another split buys nothing twice.
    return LlmTeacher(settings.teacher, context.state / "llm-cache", settings=settings)


def _token_counter(settings: QaBuildSection, inputs: dict[str, Path]) -> Callable[[str], int]:
    """Return the function that counts the model's tokens. Where none are to be counted it is never called."""
    if not settings.counts_tokens:
        return len
    if "base" not in inputs:
        raise PermanentError(
            "qa_build.chunk_tokens: the pipeline gives qa-build no model to count with; compile it again"
        )
    tokenizer = load_tokenizer(inputs["base"])
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _check_splits(pairs: Sequence[QAPair], chunks: Sequence[Chunk], settings: QaBuildSection) -> None:
    """Refuse a dataset with an empty split, naming what to change."""
    counts = Counter(pair.split for pair in pairs)
    size = "chunk_tokens" if settings.chunk_tokens else "chunk_characters"
    for split in SPLITS:
        if not counts[split]:
            share = "the sum of the shares" if split == "train" else f"qa_build.{split}_share"
            raise UserError(
                f"qa_build: no question in the {split} split ({len(pairs)} questions from {len(chunks)} chunks); "
                f"add documents, lower qa_build.{size}, or change {share} or qa_build.split_salt"
            )


def _write(
    out: Path,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    taught: TeacherOutput,
    pairs: Sequence[QAPair],
    funnel: Sequence[FunnelStep],
) -> None:
    write_records(out / DOCUMENTS, documents)
    write_records(out / "chunks.jsonl", chunks)
    write_records(out / "anchors.jsonl", taught.anchors)
    write_records(out / "rewrite_inputs.jsonl", taught.rewrite_inputs)
    for split in SPLITS:
        write_records(out / f"{split}.jsonl", (pair for pair in pairs if pair.split == split))
    write_json(out / "funnel.json", [to_json(step) for step in funnel])


def _metrics(
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    taught: TeacherOutput,
    contents: dict[str, Any],
    rejects: RejectLog,
) -> dict[str, float]:
    counts = {"documents": len(documents), "chunks": len(chunks), "anchors": len(taught.anchors)}
    counts |= contents | {"rejects": rejects.counts.total()}
    return {name: float(count) for name, count in counts.items()}


def _markdown(
    pairs: Sequence[QAPair], funnel: Sequence[FunnelStep], ingested: Ingested, checks: Sequence[Decontamination]
) -> str:
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
            filter_table(ingested.scorers),
            "",
            *(f"- {line}" for one in checks for line in check_lines(one.checks)),
        ]
    )


def _lineage(
    documents: Sequence[Document],
    facts: Mapping[str, SourceFacts],
    chunks: Sequence[Chunk],
    anchors: Sequence[Anchor],
    pairs: Sequence[QAPair],
    retellings: Sequence[Retelling],
    split_salt: str,
) -> tuple[Lineage, ...]:
    """Return the registry entries: documents, their chunks, questions and retellings, and the dataset last."""
    documents_by_id = {document.id: document_entry(document, facts[document.id]) for document in documents}
    chunks_by_id = {
        chunk.id: _entry("chunk", chunk.id, chunk, ("part-of", documents_by_id[chunk.document_id].digest))
        for chunk in chunks
    }
    questions = [
        _entry("qa", pair.id, pair, *(("about", chunks_by_id[chunk_id].digest) for chunk_id in _chunk_ids(pair)))
        for pair in pairs
    ]
    retold = [
        replace(entry, payload=entry.payload | retelling_words(one))
        for one in retellings
        for entry in (_entry("retelling", one.id, one, ("written-from", documents_by_id[one.document_id].digest)),)
    ]
    anchored = anchor_entries(anchors, {name: entry.digest for name, entry in chunks_by_id.items()})
    teachers = list(teacher_entries([*(one.teacher for one in pairs), *(one.teacher for one in retellings)]))
    contents = tuple(("contains", entry.digest) for entry in (*questions, *retold))
    cross = sum(isinstance(pair, CrossDocumentPair) for pair in pairs)
    payload = {"pairs": len(pairs) - cross}
    payload |= {split: sum(pair.split == split for pair in pairs) - cross * (split == "test") for split in SPLITS}
    payload |= {"cross_document": cross} if cross else {}
    payload |= {"retellings": len(retold)} if retold else {}
    digest = digest_json({**payload, "contains": [digest for _, digest in contents]})
    drawn = tuple((DRAWN_FROM, entry.digest) for entry in documents_by_id.values())
    written = tuple((WRITTEN_BY, entry.digest) for entry in teachers)
    version = version_facts(pairs, split_salt)
    dataset = Lineage("dataset", digest, "qa", payload | version, (*contents, *drawn, *written))
    made = (*source_entries(documents), *documents_by_id.values(), *chunks_by_id.values(), *anchored, *teachers)
    return (*made, *questions, *retold, dataset)


def _chunk_ids(pair: QAPair) -> tuple[str, ...]:
    return (pair.chunk_id, pair.other_chunk_id) if isinstance(pair, CrossDocumentPair) else (pair.chunk_id,)


def _entry(kind: str, name: str, record: Chunk | QAPair | Retelling, *inputs: tuple[str, str]) -> Lineage:
    """Return a record's entry; the digest is that of the whole record, the payload leaves out long text.

    Of the test it leaves out what is asked and answered too: a registry has readers, and the test is locked.
    """
    whole = to_json(record)
    hidden = {"text", *(LOCKED if whole.get("split") == "test" else ())}
    return Lineage(kind, digest_json(whole), name, {key: whole[key] for key in whole if key not in hidden}, inputs)
