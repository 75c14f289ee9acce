"""Align: theta_I -> theta_IA, answer-only QA training. From theta_0 the same function is vanilla SFT."""

from pathlib import Path

from iar.config import RunFile
from iar.methods.objectives import answer_rows
from iar.records import Outcome, QAPair, read_records
from iar.services.models import load_tokenizer
from iar.services.rows import prepare
from iar.services.trainer import train
from iar.services.training_report import training_outcome
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Train on the training questions, from `inputs["start"]` where given, else from theta_0."""
    pairs = list(read_records(inputs["data"] / "train.jsonl", QAPair))
    settings = run_file.align

    tokenizer = load_tokenizer(inputs["base"])
    examples = list(answer_rows(pairs))
    rows = prepare(examples, tokenizer, run_file.model.system_turn, settings.sequence_length, out)
    start = inputs["start"] / "checkpoint" if "start" in inputs else inputs["base"]
    place = context.training_place(out)
    result = train(start, rows, settings, context.seed, out, context.progress.update, context.platform, store=place)

    name = "theta_IA" if "start" in inputs else "vanilla"
    return training_outcome(out, result, parents={"data": inputs["data"], "start": start}, name=name)
