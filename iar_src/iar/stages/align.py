"""Align: theta_I -> theta_IA, answer-only QA training. From where Inject starts the same function is vanilla SFT."""

from functools import partial
from pathlib import Path

from iar.config import RunFile
from iar.methods.objectives import answer_rows
from iar.records import Outcome, QAPair, read_records
from iar.services.earlier_sets import start_of
from iar.services.example_sets import answered_by
from iar.services.models import load_tokenizer
from iar.services.oracle import open_oracle
from iar.services.rows import prepare
from iar.services.trainer import train
from iar.services.training_report import training_outcome
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Train on the training questions, from `inputs["start"]` where given, else from where Inject starts.

    That is theta_0, in a run on another the earlier theta_IA: Inject alone sets theta_IA and vanilla apart.
    """
    pairs = list(read_records(inputs["data"] / "train.jsonl", QAPair))
    settings = run_file.align
    oracle = open_oracle(run_file, "align", inputs["data"], out, context)

    tokenizer = load_tokenizer(inputs["base"])
    examples = list(answer_rows(pairs))
    writers = {"qa": answered_by(pairs)}
    rows = prepare(examples, tokenizer, run_file.model.system_turn, settings.sequence_length, out, writers=writers)
    start = inputs["start"] / "checkpoint" if "start" in inputs else start_of(inputs)
    place, update = context.training_place(out), context.progress.update
    training = partial(train, start, rows, settings, context.seed, out, update, context.platform, store=place)
    result = oracle.trained(partial(training, keep_epochs=True)) if oracle else training()

    name = "theta_IA" if "start" in inputs else "vanilla"
    outcome = training_outcome(out, result, parents={"data": inputs["data"], "start": start}, name=name)
    return oracle.reported(name, outcome) if oracle else outcome
