"""Inject: theta_0 -> theta_I, instruction-conditioned reconstruction of the documents."""

from pathlib import Path

from iar.config import RunFile
from iar.methods.objectives import reconstruction_rows
from iar.records import Document, Outcome, Skeleton, read_records
from iar.services.models import load_tokenizer
from iar.services.rows import prepare
from iar.services.trainer import train
from iar.services.training_report import training_outcome
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Train on three renderings of every document; write `checkpoint/`, `steps.jsonl` and `card.json`."""
    documents = list(read_records(inputs["data"] / "documents.jsonl", Document))
    skeletons = list(read_records(inputs["data"] / "skeletons.jsonl", Skeleton))
    settings = run_file.inject
    examples = list(reconstruction_rows(documents, skeletons, settings.weights, context.seed))

    tokenizer = load_tokenizer(inputs["base"])
    rows = prepare(examples, tokenizer, run_file.model.system_turn, settings.sequence_length, out)
    result = train(inputs["base"], rows, settings, context.seed, out, context.progress.update)

    return training_outcome(out, result, parents={"data": inputs["data"], "start": inputs["base"]}, name="theta_I")
