"""Baseline: one control or baseline beside the method, by the name of its recipe, as a checkpoint of its own.

All train on the same questions with align's settings, unless a recipe is about exactly that.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iar.config import RunFile, TrainingSection
from iar.errors import UserError
from iar.methods.batching import TokenRow
from iar.methods.budget import nearest_epochs
from iar.methods.contamination import Evaluation, TrainingText
from iar.methods.merge_grid import Recipe
from iar.methods.objectives import answer_rows
from iar.methods.raw_stream import raw_stream, stream_rows
from iar.methods.replay import general_share, mixed_epoch, visited_in_order
from iar.methods.self_distillation import Rewrite, acceptance
from iar.records import (
    Baseline,
    Document,
    Lineage,
    Outcome,
    QAPair,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.adapters import LoraSettings
from iar.services.base_weights import base_with_tokenizer
from iar.services.baselines import TrainedTokens, trained_tokens, write_baseline
from iar.services.checkpoints import recorded_digest
from iar.services.decontamination import decontaminate, write_checks
from iar.services.evaluations import general_evaluations, own_evaluation
from iar.services.example_sets import EXAMPLE_SET, GIVEN, SYNTHETIC, answered_by, write_examples
from iar.services.instructions import OBJECTIVE, general_examples
from iar.services.merge_stream import merge_candidates
from iar.services.models import load_tokenizer
from iar.services.rows import dataset_card, prepare, tokenise
from iar.services.telemetry import TrainingResult
from iar.services.test_lock import sealed_test
from iar.services.train_engines import stored_dtype
from iar.services.trainer import train
from iar.services.training_report import dataset_digest, training_outcome
from iar.services.workspace import Context

Facts = dict[str, float]
NOTHING = TrainedTokens(0, 0)
FP32_BYTES = 4


@dataclass(frozen=True)
class Task:
    """What a recipe works with."""

    run_file: RunFile
    inputs: dict[str, Path]
    out: Path
    context: Context

    @property
    def base(self) -> Path:
        """The folder of theta_0."""
        return self.inputs["base"]

    @property
    def pairs(self) -> list[QAPair]:
        """The training questions."""
        return list(read_records(self.inputs["data"] / "train.jsonl", QAPair))


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Carry out the recipe `context.recipe`; write `checkpoint/`, `baseline.json` and what its training leaves."""
    return RECIPES[context.recipe](Task(run_file, inputs, out, context))


def cpt_sft(task: Task) -> Outcome:
    """Continued pre-training on the raw documents, then the questions; from the instruct model or from its base."""
    settings, align = task.run_file.baselines, task.run_file.align
    start, raw = task.base, task.out / "raw"
    if settings.cpt_model:
        start = base_with_tokenizer(settings.cpt_model, settings.cpt_revision, task.base, task.out / "start")

    raw.mkdir(exist_ok=True)
    if not (raw / "checkpoint").is_dir():  # else an earlier try was killed after it
        inject = task.run_file.inject.model_copy(update={"epochs": settings.cpt_epochs})
        _train(task, start, _raw_rows(task, raw), inject, raw, _half(task, 0, "documents"))
    rows = _question_rows(task, task.pairs)
    result = _train(task, raw / "checkpoint", rows, align, task.out, _half(task, 1, "questions"))

    read = trained_tokens(raw)
    facts = {"raw_tokens": float(read.target_tokens), "from_base_model": float(bool(settings.cpt_model))}
    outcome = _finish(task, result, facts, start, read)
    for folder in (raw / "checkpoint", task.out / "start"):
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def budget_match(task: Task) -> Outcome:
    """The questions alone, for as many epochs as come nearest to the tokens that Inject and Align trained on."""
    budget = trained_tokens(task.inputs["inject"]) + trained_tokens(task.inputs["tuned"])
    rows = _question_rows(task, task.pairs)
    epochs = nearest_epochs(budget.target_tokens, sum(row.target_length for row in rows))
    align = task.run_file.align.model_copy(update={"epochs": epochs})
    result = _train(task, task.base, rows, align)
    ratio = result.target_tokens / budget.target_tokens
    return _finish(task, result, {"epochs": float(epochs), "budget_ratio": ratio})


def replay(task: Task) -> Outcome:
    """The questions with a share of general instructions in their place, drawn anew each epoch."""
    settings, align, seed = task.run_file.baselines, task.run_file.align, task.context.seed
    system_turn, length = task.run_file.model.system_turn, align.sequence_length
    domain = _question_rows(task, task.pairs)
    given = general_examples(settings.replay_data)
    texts = (TrainingText(example.id, example.prompt, example.target) for example in given)
    found = decontaminate("replay", texts, _evaluations(task))
    examples, leaks = found.divide(given, "replay")
    write_checks(task.out, [found])
    tokenizer = load_tokenizer(task.base)
    general, too_long = tokenise(examples, tokenizer, system_turn, length)
    if not general:
        raise UserError(
            f"baselines.replay_data: of {settings.replay_data} no row is left, {len(leaks)} gave away an evaluated "
            f"prompt, {len(too_long)} did not fit sequence_length {length}; give other data"
        )
    epochs = [mixed_epoch(domain, general, settings.replay_share, seed, epoch) for epoch in range(align.epochs)]
    write_records(task.out / "replay-rejects.jsonl", [*leaks, *too_long])
    sources = [*answer_rows(task.pairs), *examples]
    mixed = [row for rows in epochs for row in rows]
    writers = {"qa": answered_by(task.pairs), OBJECTIVE: GIVEN}
    card = dataset_card(sources, epochs[0], [*leaks, *too_long], tokenizer)
    card[EXAMPLE_SET] = write_examples(task.out, sources, mixed, tokenizer, writers)
    write_json(task.out / "card.json", card)

    once = align.model_copy(update={"epochs": 1})
    result = _train(task, task.base, visited_in_order(epochs, seed), once)
    facts = {"replay_share": general_share(mixed, OBJECTIVE), "general_rows": float(len(general))}
    return _finish(task, result, facts | {"leaks_dropped": float(len(leaks))})


def lora(task: Task) -> Outcome:
    """The questions through low-rank factors beside every attention and MLP projection, merged after training."""
    settings, align = task.run_file.baselines, task.run_file.align
    rate = settings.lora_rate_factor * align.learning_rate
    factors = LoraSettings(settings.lora_rank, settings.lora_alpha, task.context.seed)
    rows = _question_rows(task, task.pairs)
    scaled = align.model_copy(update={"learning_rate": rate})
    result = _train(task, task.base, rows, scaled, lora=factors)
    return _finish(task, result, {"rank": float(settings.lora_rank), "learning_rate": rate})


def sdft(task: Task) -> Outcome:
    """The questions with answers that theta_0 wrote in its own words, where these kept the answer."""
    pairs = task.pairs
    rewrites = list(read_records(task.inputs["rewrites"] / "rewrites.jsonl", Rewrite))
    own = [replace(pair, answer=rewrite.answer) for pair, rewrite in zip(pairs, rewrites, strict=True)]
    taken = [rewrite.id for rewrite in rewrites if not rewrite.refused]
    result = _train(task, task.base, _question_rows(task, own, taken), task.run_file.align)
    return _finish(task, result, acceptance(rewrites))


def fapm(task: Task) -> Outcome:
    """Of vanilla's change to theta_0, the part that weighs little on the weights it was made to.

    A theta_0 coarser than fp32 has vanilla's checkpoint rounded to its grid, and the small changes with it; then the
    same training is made once more and its fp32 masters are pruned.
    """
    name, keep = task.context.recipe, task.run_file.baselines.fapm_keep
    tuned, trained, entries = task.inputs["vanilla"] / "checkpoint", task.inputs["vanilla"], []
    if stored_dtype(task.base).itemsize < FP32_BYTES:
        tuned, trained, entries = task.out / "masters", task.out, [_train_masters(task)]
    parents = {"base": recorded_digest(task.base), "tuned": recorded_digest(tuned)}
    recipe = Recipe("checkpoint", "fapm", "keep", keep, task.context.seed)
    (merged,) = merge_candidates(task.base, tuned, [recipe], task.out, parents)
    shutil.rmtree(task.out / "masters", ignore_errors=True)
    spent = trained_tokens(trained)
    facts = {"changed_share": merged.changed_share, "distance_to_vanilla": merged.distance_to_tuned}
    write_baseline(task.out, Baseline(name, spent.tokens, spent.target_tokens, facts))
    entries.append(Lineage("checkpoint", merged.digest, name, to_json(recipe) | facts, tuple(parents.items())))
    return Outcome(
        metrics=facts,
        markdown=f"**{name}**: {keep:.0%} of vanilla's change kept, {merged.changed_share:.1%} of the weights changed",
        lineage=tuple(entries),
    )


def _train_masters(task: Task) -> Lineage:
    """Make vanilla's training and leave its fp32 masters in `masters/`; return their registry entry."""
    masters = task.out / "masters"
    if not masters.is_dir():  # else an earlier try was killed after it
        _train(task, task.base, _question_rows(task, task.pairs), task.run_file.align, keep_masters=True)
        (task.out / "checkpoint").rename(masters)
    made_of = ("trained-from", recorded_digest(task.base)), ("trained-on", dataset_digest(task.inputs["data"]))
    return Lineage("checkpoint", recorded_digest(masters), "vanilla in fp32", {}, made_of)


RECIPES: dict[str, Callable[[Task], Outcome]] = {
    "cpt-sft": cpt_sft,
    "budget-match": budget_match,
    "replay": replay,
    "lora": lora,
    "sdft": sdft,
    "fapm": fapm,
}


def _train(
    task: Task,
    start: Path,
    rows: Sequence[TokenRow],
    settings: TrainingSection,
    out: Path | None = None,
    update: Callable[[int, int, str], None] | None = None,
    lora: LoraSettings | None = None,
    keep_masters: bool = False,
) -> TrainingResult:
    """Train into the stage's own folder unless told otherwise, where the run file says."""
    context = task.context
    # Factors are small: what ZeRO would spread is not there, and it does not know them.
    platform = context.platform.model_copy(update={"training_engine": "auto"}) if lora else context.platform
    update, out = update or context.progress.update, out or task.out
    place = context.training_place(out)
    return train(start, rows, settings, context.seed, out, update, platform, lora, place, keep_masters)


def _question_rows(task: Task, pairs: Sequence[QAPair], rewritten: Sequence[str] = ()) -> list[TokenRow]:
    """Return the rows of the questions; `rewritten`: the ids of those whose answers theta_0 wrote."""
    settings = task.run_file.align
    return prepare(
        list(answer_rows(pairs)),
        load_tokenizer(task.base),
        task.run_file.model.system_turn,
        settings.sequence_length,
        task.out,
        writers={"qa": answered_by(pairs)} | dict.fromkeys(rewritten, SYNTHETIC),
    )


def _raw_rows(task: Task, out: Path) -> list[TokenRow]:
    """Return the windows of the raw documents; write their card. Raises UserError for a tokenizer without EOS."""
    tokenizer = load_tokenizer(task.base)
    if tokenizer.eos_token_id is None:
        raise UserError(f"model.source: {task.run_file.model.source} has no EOS token; cpt-sft needs one between texts")
    documents = list(read_records(task.inputs["data"] / "documents.jsonl", Document))
    texts = (tokenizer(document.text, add_special_tokens=False)["input_ids"] for document in documents)
    window = task.run_file.baselines.cpt_window_tokens or task.run_file.inject.sequence_length
    rows = stream_rows(raw_stream(texts, tokenizer.bos_token_id, tokenizer.eos_token_id), window)
    write_json(out / "card.json", dataset_card((), rows, (), tokenizer) | {"examples": len(documents)})
    return rows


def _evaluations(task: Task) -> list[Evaluation]:
    """Return all that models are asked; the test stays sealed."""
    data = task.inputs["data"]
    validation = own_evaluation("validation", read_records(data / "validation.jsonl", QAPair))
    return [validation, sealed_test(data), *general_evaluations(task.run_file)]


def _half(task: Task, number: int, what: str) -> Callable[[int, int, str], None]:
    """Report the steps of one of two parts as a half of the whole."""
    update = task.context.progress.update
    return lambda step, steps, note: update(number * steps + step, 2 * steps, f"{what}, {note}")


def _finish(
    task: Task,
    result: TrainingResult,
    facts: Facts,
    start: Path | None = None,
    before: TrainedTokens = NOTHING,
) -> Outcome:
    """Record the baseline; `before` are tokens of a training before the one of `result`."""
    name, parents = task.context.recipe, {"data": task.inputs["data"], "start": start or task.base}
    spent = before + TrainedTokens(result.tokens, result.target_tokens)
    write_baseline(task.out, Baseline(name, spent.tokens, spent.target_tokens, facts))
    outcome = training_outcome(task.out, result, parents, name)
    told = ", ".join(f"{fact.replace('_', ' ')} {value:.4g}" for fact, value in facts.items())
    *seen, entry = outcome.lineage
    return Outcome(
        metrics=outcome.metrics | facts,
        markdown=f"{outcome.markdown}\n\n{told}",
        lineage=(*seen, replace(entry, payload=entry.payload | {"recipe": name} | facts)),
    )
