"""Inject: theta_0, or an earlier theta_IA -> theta_I, instruction-conditioned reconstruction of the documents."""

from functools import partial
from itertools import chain
from pathlib import Path

from iar.config import RunFile
from iar.methods.objectives import (
    Passage,
    chunk_passages,
    document_passages,
    reconstruction_rows,
    retelling_rows,
)
from iar.records import Anchor, Chunk, Document, Example, Outcome, Retelling, RewriteInput, read_records
from iar.services.earlier_sets import ROLE, start_of
from iar.services.models import load_tokenizer
from iar.services.oracle import open_oracle
from iar.services.rows import fit_passages, prepare
from iar.services.trainer import train
from iar.services.training_report import training_outcome
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Train on the renderings of every document and its retellings, if there are any.

    Writes `checkpoint/`, `steps.jsonl` and `card.json`, and with an oracle what it found.
    """
    settings, system_turn = run_file.inject, run_file.model.system_turn
    oracle = open_oracle(run_file, "inject", inputs["data"], out, context)
    tokenizer = load_tokenizer(inputs["base"])
    parts = fit_passages(passages(inputs["data"], settings.unit), settings, context.seed, tokenizer, system_turn)
    tag = settings.provenance_tag
    examples = list(reconstruction_rows(chain.from_iterable(parts), settings.weights, context.seed, tag))
    examples += retellings(inputs["data"], tag)

    divided = [len(own) for own in parts if len(own) > 1]
    counts = {"divided_passages": len(divided), "parts": sum(divided)}
    rows = prepare(examples, tokenizer, system_turn, settings.sequence_length, out, counts)
    start, place, update = start_of(inputs), context.training_place(out), context.progress.update
    training = partial(train, start, rows, settings, context.seed, out, update, context.platform, store=place)
    result = oracle.trained(partial(training, keep_epochs=True)) if oracle else training()

    parents = {"data": inputs["data"], "start": start}
    outcome = training_outcome(out, result, parents, "theta_I", built_on=ROLE in inputs)
    return oracle.reported("theta_I", outcome) if oracle else outcome


def passages(data: Path, unit: str) -> list[Passage]:
    """Return what the rows reconstruct: whole documents or their chunks."""
    documents = list(read_records(data / "documents.jsonl", Document))
    chunks = list(read_records(data / "chunks.jsonl", Chunk))
    anchors = list(read_records(data / "anchors.jsonl", Anchor))
    if unit == "chunk":
        return list(chunk_passages(documents, chunks, anchors))
    rewrite_inputs = list(read_records(data / "rewrite_inputs.jsonl", RewriteInput))
    return list(document_passages(documents, rewrite_inputs, chunks, anchors))


def retellings(data: Path, tag: str) -> list[Example]:
    """Return the rows of what qa_build.augment asked for; none where it asked for nothing."""
    if not (data / "retellings.jsonl").is_file():
        return []
    documents = list(read_records(data / "documents.jsonl", Document))
    return list(retelling_rows(documents, list(read_records(data / "retellings.jsonl", Retelling)), tag))
