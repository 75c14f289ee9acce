"""Controls and baselines beside the method: one row a model with its scores, its gain on vanilla and its tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.methods.paired import PairedDifference, paired
from iar.records import ItemScore, ModelScores, read_records
from iar.services.baselines import TrainedTokens, baseline_folders, trained_tokens

VANILLA = "vanilla"
VANILLA_RECIPE = "vanilla-sft"
ITEMS = "items.jsonl"
AXES = (("domain", ("domain",)), ("general", ("ifeval", "mmlu", "msbench")))


@dataclass(frozen=True)
class RecipeRow:
    """A model of the table: `name` as the table calls it, `target_tokens` trained on up to it, and their `ratio` to
    those of Inject + Align. `gains` are its paired differences to vanilla by axis, empty for vanilla itself.
    """

    name: str
    scores: ModelScores
    target_tokens: int
    ratio: float
    gains: dict[str, PairedDifference]
    facts: dict[str, float]


def recipe_rows(
    inputs: Mapping[str, Path], scores: Sequence[ModelScores], folders: Sequence[Path], pick: str, run_file: RunFile
) -> tuple[RecipeRow, ...]:
    """Return theta_0, vanilla, the baselines, Inject + Align and the pick on one split; () where no recipe was asked.

    `folders` hold the models' item scores on that split.
    """
    asked = run_file.baselines.recipes
    if not asked:
        return ()
    by_model = {one.model: one for one in scores}
    tokens = _tokens(inputs, pick)
    facts = {baseline.recipe: baseline.facts for baseline, _ in baseline_folders(inputs)}
    names = {"theta_0": "theta_0", VANILLA: VANILLA_RECIPE} | {name: name for name in asked if name != VANILLA_RECIPE}
    names |= {"theta_IA": "Inject + Align", pick: f"IAR: {pick}"}
    items = {model: _items(folders, model) for model in names if model in by_model}
    both = tokens["theta_IA"].target_tokens
    return tuple(
        RecipeRow(
            names[model],
            by_model[model],
            tokens[model].target_tokens,
            tokens[model].target_tokens / both,
            {} if model == VANILLA else dict(_gains(items[model], items[VANILLA], run_file)),
            facts.get(model, {}),
        )
        for model in items
    )


def rows_json(rows: Sequence[RecipeRow]) -> list[dict[str, Any]]:
    """Return the table as JSON data; scores stand with their models."""
    return [
        {
            "recipe": row.name,
            "model": row.scores.model,
            "split": row.scores.split,
            "target_tokens": row.target_tokens,
            "ratio_to_inject_align": row.ratio,
            "minus_vanilla": {axis: _numbers(one) for axis, one in row.gains.items()},
            "facts": row.facts,
        }
        for row in rows
    ]


def _numbers(difference: PairedDifference) -> dict[str, Any]:
    return {name: value for name, value in asdict(difference).items() if name in ("points", "low", "high", "items")}


def _tokens(inputs: Mapping[str, Path], pick: str) -> dict[str, TrainedTokens]:
    """Return by model the tokens of all trainings that led to it; merging adds none."""
    both = trained_tokens(inputs["inject"]) + trained_tokens(inputs["tuned"])
    tokens = {"theta_0": TrainedTokens(0, 0), VANILLA: trained_tokens(inputs["vanilla"]), "theta_IA": both, pick: both}
    made = (baseline for baseline, _ in baseline_folders(inputs))
    return tokens | {one.recipe: TrainedTokens(one.tokens, one.target_tokens) for one in made}


def _items(folders: Sequence[Path], model: str) -> list[ItemScore]:
    path = next(folder / model / ITEMS for folder in folders if (folder / model / ITEMS).is_file())
    return list(read_records(path, ItemScore))


def _gains(
    ours: Sequence[ItemScore], theirs: Sequence[ItemScore], run_file: RunFile
) -> Iterator[tuple[str, PairedDifference]]:
    for axis, suites in AXES:
        yield axis, paired(axis, suites, ours, theirs, run_file.evaluate.resamples, run_file.run.seed)
