"""Numbers as people read them, and the result table as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iar.methods.verification import share_text

COLUMNS = (
    ("domain", "Domain"),
    ("ifeval", "IFEval"),
    ("mmlu", "MMLU"),
    ("msbench", "MSBench"),
    ("general", "General"),
)
RETAINED = ("retention", "Retention")
"""The column beside them in a run on another: what is retained of the earlier document sets."""
DESCRIPTIONS = {
    "theta_0": "base model, untrained",
    "earlier": "theta_IA of the run that this one is built on",
    "vanilla": "QA training only",
    "theta_I": "Inject, before Align",
    "theta_IA": "Inject + Align, before merging",
}
BASELINES = {
    "cpt-sft": "raw documents, then QA training",
    "budget-match": "QA training, as many tokens as Inject + Align",
    "replay": "QA training with general data mixed in",
    "lora": "QA training of low-rank factors",
    "sdft": "QA training on answers in the model's own words",
    "fapm": "vanilla, its change pruned",
}
GAINS = ("domain", "general")
RECIPE_TITLES = (
    "Recipe", *(title for _, title in COLUMNS), "Domain − vanilla", "General − vanilla", "Trained tokens", "Ratio",
)  # fmt: skip
Score = Mapping[str, Any]


def points_text(score: Score) -> str:
    """Return points with the 95 % interval: `31.2 (27.0 to 35.4)`."""
    return f"{score['points']:.1f} ({score['low']:.1f} to {score['high']:.1f})"


def difference_text(score: Score) -> str:
    """Return a difference in points with sign and 95 % interval: `+8.1 (+3.2 to +12.9)`."""
    return f"{score['points']:+.1f} ({score['low']:+.1f} to {score['high']:+.1f})"


def columns_of(models: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return key and title of what is shown of some models of `results.json`."""
    return (*COLUMNS, RETAINED) if any(RETAINED[0] in model for model in models) else COLUMNS


def results_markdown(results: dict[str, Any]) -> str:
    """Return the result table of `results.json` data: the locked test, or validation where there was no pick."""
    pick = results["pick"]
    split = "test" if pick else "validation"
    models = [model for model in results["models"] if model["split"] == split and (pick or model["id"] in DESCRIPTIONS)]
    lines = [] if pick else ["**No feasible candidate**: the test stayed locked; the references on validation:", ""]
    columns = columns_of(models)
    lines += [f"| Model | {' | '.join(title for _, title in columns)} |", "| --- |" + " ---: |" * len(columns)]
    for model in models:
        cells = [points_text(model[key]) if key in model else "-" for key, _ in columns]
        lines.append(f"| {_name(model['id'], pick)} | {' | '.join(cells)} |")
    if looks := looks_cells(models):
        lines.append(f"| Models scored so far | {' | '.join(looks)} |")
    if results.get("preferred"):
        lines += ["", f"Picked by {results['preferred']} instead of the rule's own preference."]
    lines += ["", f"Points from 0 to 100 on {split} with 95 % bootstrap intervals{_seed_text(results)}."]
    if against := results.get("paired", {}).get("vanilla"):
        gains = ", ".join(f"{axis} {difference_text(score)}" for axis, score in against.items())
        lines.append(f"{pick} against vanilla, paired over the same items: {gains}.")
    if recipes := recipe_lines(results):
        head = [f"| {' | '.join(RECIPE_TITLES)} |", "| --- |" + " ---: |" * (len(RECIPE_TITLES) - 1)]
        lines += ["", *head, *(f"| {' | '.join(cells)} |" for cells in recipes), ""]
    lines += verifier_lines(results)
    if results.get("taken_before"):
        lines.append(taken_before_text(results["taken_before"]))
    lines += regression_lines(results)
    lines += diverged_lines(results)
    if results.get("unchecked"):
        lines.append(unchecked_text(results["unchecked"]))
    if results.get("offline"):
        lines.append(f"Rule-based, no LLM: {', '.join(results['offline'])}.")
    return "\n".join(lines)


def looks_cells(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each column how many models had been scored on its set after these: who chooses by it wears it out.

    [] where an older version scored.
    """
    columns = columns_of(models)
    looks = {
        key: max((model[key].get("looks", 0) for model in models if key in model), default=0) for key, _ in columns
    }
    return [str(looks[key]) if looks[key] else "-" for key, _ in columns] if any(looks.values()) else []


def looks_lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line a split: how many models were scored on each set so far."""
    lines = []
    for split in ("test", "validation"):
        models = [model for model in results.get("models", ()) if model["split"] == split]
        named = zip(columns_of(models), looks_cells(models), strict=False)
        each = [f"{title} {cell}" for (_, title), cell in named if cell != "-"]
        lines += [f"Models scored so far on each set, {split}: {', '.join(each)}."] if each else []
    return lines


def taken_before_text(taken_before: str) -> str:
    """Return the warning beside scores of a test that was no first look."""
    return f"NOT A FIRST LOOK at the test, so its scores may flatter: {taken_before}."


def regression_lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each non-regression set, a warning where the pick is worse than the model before it."""
    return [
        f"{'REGRESSION' if one['regressed'] else 'No regression'} on {one['text']}."
        for one in results.get("non_regression", ())
    ]


def diverged_lines(results: Mapping[str, Any]) -> list[str]:
    """Return a warning for each training that got better while its oracle's score fell."""
    return [f"THE ORACLE DIVERGES from the training of {warning}." for warning in results.get("diverged", ())]


def verifier_lines(results: Mapping[str, Any]) -> list[str]:
    """Return one line on how far attacks fool the judges behind the scores; [] where an older version judged."""
    each = [f"{one['verifier']} {share_text(one['attack_success'])}" for one in results.get("verifiers", ())]
    return [f"Attacks without an answer that the judges score above 0: {', '.join(each)}."] if each else []


def unchecked_text(unchecked: Iterable[str]) -> str:
    """Return the warning beside scores on evaluations that training data was not checked against."""
    return f"UNCHECKED for contamination, so scores on them may flatter: {', '.join(unchecked)}."


def recipe_cells(row: Mapping[str, Any], scores: Mapping[str, Any]) -> list[str]:
    """Return one line of the table of recipes: name, scores, gains on vanilla, trained tokens, ratio.

    `row` is one of `results.json`'s recipes, `scores` the model of that row.
    """
    gains = [difference_text(row["minus_vanilla"][axis]) if row["minus_vanilla"] else "-" for axis in GAINS]
    points = [points_text(scores[key]) for key, _ in COLUMNS]
    return [row["recipe"], *points, *gains, f"{row['target_tokens']:,}", f"{row['ratio_to_inject_align']:.2f}"]


def recipe_lines(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of recipes, the paper's tables 1 and 2: [] where no recipe was asked for."""
    models = {(model["id"], model["split"]): model for model in results["models"]}
    return [recipe_cells(row, models[row["model"], row["split"]]) for row in results.get("recipes", ())]


def _name(model: str, pick: str) -> str:
    if model == pick:
        return f"**{model}** (the pick)"
    return f"{model} ({DESCRIPTIONS[model]})" if model in DESCRIPTIONS else model


def _seed_text(results: dict[str, Any]) -> str:
    return f"; one run, seed {results['seed']}" if "seed" in results else ""
