"""Fisher: theta_0 on general instructions, theta_IA on the questions -> how sure each is of each tensor."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.methods.contamination import TrainingText
from iar.methods.objectives import answer_rows
from iar.records import Example, Outcome, QAPair, TensorInformation, read_records, write_records
from iar.services.decontamination import decontaminate, write_checks
from iar.services.earlier_sets import EarlierSets
from iar.services.evaluations import general_evaluations, own_evaluation
from iar.services.fisher import INFORMATION, ROWS, squared_gradients
from iar.services.instructions import general_examples
from iar.services.models import load_tokenizer
from iar.services.qa_earlier import learned_questions
from iar.services.rows import tokenise
from iar.services.test_lock import sealed_test
from iar.services.workspace import Context

Item = TypeVar("Item")


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write `information.jsonl`, one line a tensor, from ROWS training questions and ROWS general instructions.

    In a run on another the questions are those of all document sets, for all of them are merged. The instructions are
    `baselines.replay_data`, without those that give an evaluated prompt away.
    """
    pairs = [*read_records(inputs["data"] / "train.jsonl", QAPair), *learned_questions(EarlierSets.of(inputs))]
    questions = list(answer_rows(pairs))
    general = _general(run_file, inputs["data"], out)
    rows_0, rows_1 = (
        _rows(drawn(examples, ROWS, context.seed), run_file, inputs["base"]) for examples in (general, questions)
    )
    if not rows_0 or not rows_1:
        what = "baselines.replay_data" if not rows_0 else "align.sequence_length"
        raise UserError(f"{what}: no row is left to weigh the tensors by; give other instructions, or longer sequences")
    steps, update = len(rows_0) + len(rows_1), context.progress.update
    base = squared_gradients(inputs["base"], rows_0, lambda done, rows: update(done, steps, "theta_0"))
    tuned = squared_gradients(
        inputs["tuned"] / "checkpoint", rows_1, lambda done, rows: update(len(rows_0) + done, steps, "theta_IA")
    )
    information = [TensorInformation(name, size, mean, tuned[name][1]) for name, (size, mean) in sorted(base.items())]
    write_records(out / INFORMATION, information)
    told = f"{len(information)} tensors, from {len(rows_0)} instructions under theta_0 and {len(rows_1)} questions"
    return Outcome({"instructions": float(len(rows_0)), "questions": float(len(rows_1))}, f"{told} under theta_IA.")


def drawn(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """Return at most `count` items in their order, drawn by the seed."""
    places = random.Random(f"{seed}:fisher").sample(range(len(items)), min(count, len(items)))
    return [items[place] for place in sorted(places)]


def _general(run_file: RunFile, data: Path, out: Path) -> list[Example]:
    """Return the instructions that give away nothing models are asked; the test stays sealed."""
    given = general_examples(run_file.baselines.replay_data)
    validation = own_evaluation("validation", read_records(data / "validation.jsonl", QAPair))
    evaluations = [validation, sealed_test(data), *general_evaluations(run_file)]
    texts = (TrainingText(example.id, example.prompt, example.target) for example in given)
    found = decontaminate("fisher", texts, evaluations)
    write_checks(out, [found])
    return found.divide(given, "fisher")[0]


def _rows(examples: Sequence[Example], run_file: RunFile, base: Path) -> list[TokenRow]:
    length = run_file.align.sequence_length
    return tokenise(examples, load_tokenizer(base), run_file.model.system_turn, length)[0]
