"""Selector: the validation scores of all candidates -> one pick, or none, with a reason for each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.bpb import ranking
from iar.methods.digest import digest_file, digest_json
from iar.methods.merge_grid import grid
from iar.methods.pick_stability import pick_stability
from iar.methods.provenance import WEIGHED, scores_payload
from iar.methods.pruning import pruning_losses
from iar.methods.selection import Rule, Ruling, mark_duplicates, select
from iar.records import (
    BitsPerByte,
    Candidate,
    ItemScore,
    Lineage,
    ModelScores,
    Outcome,
    PickStability,
    QAPair,
    Selection,
    read_records,
    to_json,
    write_json,
)
from iar.services.bpb import read_all_bpb
from iar.services.workspace import Context

VANILLA = "vanilla"
SPLIT = "validation"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write `selection.json`, `frontier.json` and `pruning.json`; no feasible candidate is a result with an empty pick.

    `pruning.json` has what the rule would have picked among the first candidates by bits per byte alone.
    """
    candidates = _read_candidates(_folders(inputs, "candidates_"), run_file, context.seed)
    references = _read_scores([inputs["references"]])
    vanilla = _vanilla(references, inputs["references"])
    judged_at = _folders(inputs, "scores_")
    scores = _read_scores(judged_at)
    # Shown beside the candidates; the rule does not look at them.
    baselines = _read_scores([inputs["baseline_scores"]]) if "baseline_scores" in inputs else []

    questions = inputs["data"] / f"{SPLIT}.jsonl"
    settings = run_file.select
    ranked = _ranked(candidates, read_all_bpb(judged_at))
    if settings.prune_to and not ranked:
        raise UserError("selector: no bits per byte to prune by: rerun judge-eval")
    pruned = _pruned(ranked, settings.prune_to)
    judged = _judged([one for one in candidates if one.id not in pruned], scores)
    floors = {str(metric): points for metric, points in settings.floors.items()}
    rule = Rule(settings.tolerance_points, settings.preference, floors)
    ruling = select(judged, vanilla, candidates, rule, pruned)
    resamples, values = run_file.evaluate.resamples, {candidate.id: candidate.value for candidate in candidates}
    items = {one.model: _items(judged_at, one.model) for one in judged}
    stability = pick_stability(items, _items([inputs["references"]], VANILLA), values, rule, resamples, context.seed)
    chosen = next((candidate for candidate in candidates if candidate.id == ruling.pick), None)
    selection = Selection(
        pick=ruling.pick,
        rule=str(rule),
        tolerance_points=rule.tolerance_points,
        verdicts=ruling.verdicts,
        dataset_digest=digest_file(questions),
        candidate_digest=chosen.digest if chosen else "",
        preference=rule.preference,
        floors=dict(rule.floors),
        stability=stability,
    )

    write_json(out / "selection.json", to_json(selection))
    write_json(out / "frontier.json", _frontier(references, baselines, judged, ruling, stability))
    order = [one.model for one in ranked if one.model not in pruned]
    losses = pruning_losses(judged, vanilla, candidates, rule, order, ruling.pick)
    write_json(out / "pruning.json", {"ranking": order, "losses": [to_json(one) for one in losses]})
    context.progress.update(1, 1)
    dataset = _dataset(selection.dataset_digest, list(read_records(questions, QAPair)))
    decision = _decision(selection, candidates, vanilla, judged)
    return Outcome(_metrics(judged, ruling, stability), _markdown(selection), (dataset, decision))


def _folders(inputs: dict[str, Path], prefix: str) -> list[Path]:
    """Return the inputs of any number of shards: roles such as `scores_1`, `scores_2`."""
    folders = [folder for role, folder in inputs.items() if role.replace("-", "_").startswith(prefix)]
    if not folders:
        raise UserError(f"selector: no input named {prefix}1, {prefix}2, ...: got {', '.join(sorted(inputs))}")
    return folders


def _read_candidates(folders: Iterable[Path], run_file: RunFile, seed: int) -> list[Candidate]:
    """Return the candidates of all shards in grid order, equal content marked, however they were spread."""
    found = {item.id: item for folder in folders for item in read_records(folder / "candidates.jsonl", Candidate)}
    order = {recipe.id: place for place, recipe in enumerate(grid(run_file.recover, seed))}
    if missing := [name for name in order if name not in found]:
        raise UserError(
            f"selector: the grid has {len(order)} candidates, none made for {', '.join(missing)}: rerun them"
        )
    return mark_duplicates(sorted(found.values(), key=lambda item: order.get(item.id, len(order))))


def _read_scores(folders: Iterable[Path]) -> list[ModelScores]:
    """Return the scores of all folders. Raises UserError for any split but validation."""
    scores = [item for folder in folders for item in read_records(folder / "scores.jsonl", ModelScores)]
    for item in scores:
        if item.split != SPLIT:
            raise UserError(f"selector: scores of {item.model} are on split {item.split!r}: only {SPLIT} may pick")
    return scores


def _vanilla(references: Sequence[ModelScores], folder: Path) -> ModelScores:
    for scores in references:
        if scores.model == VANILLA:
            return scores
    raise UserError(
        f"selector: {folder / 'scores.jsonl'} has no {VANILLA!r}: the rule compares every candidate with it"
    )


def _judged(candidates: Sequence[Candidate], scores: Sequence[ModelScores]) -> list[ModelScores]:
    """Return the scores of the candidates that are no duplicates, in grid order."""
    by_model = {item.model: item for item in scores}
    originals = [item.id for item in candidates if not item.duplicate_of]
    if missing := [name for name in originals if name not in by_model]:
        raise UserError(f"selector: no scores for {', '.join(missing)}: rerun judge-eval of their shard")
    return [by_model[name] for name in originals]


def _ranked(candidates: Sequence[Candidate], measured: Sequence[BitsPerByte]) -> list[BitsPerByte]:
    """Return the bits per byte of the candidates that are no duplicates, the best first; [] where none was measured."""
    if not measured:
        return []
    by_digest = {one.checkpoint_digest: one for one in measured}
    originals = {one.digest: one.id for one in candidates if not one.duplicate_of}
    if missing := [name for digest, name in originals.items() if digest not in by_digest]:
        raise UserError(f"selector: no bits per byte of {', '.join(missing)}: rerun judge-eval of their shard")
    own = [replace(by_digest[digest], model=name) for digest, name in originals.items()]
    place = {digest: number for number, digest in enumerate(ranking(own))}
    return sorted(own, key=lambda one: place[one.checkpoint_digest])


def _pruned(ranked: Sequence[BitsPerByte], prune_to: int) -> dict[str, str]:
    """Return by id why a candidate was not evaluated; {} where all are."""
    return {
        one.model: f"pruned: {one.source:.3f} bits per byte of source, {one.general:.3f} of general text; "
        f"rank {rank} of {len(ranked)}, {prune_to} evaluated"
        for rank, one in enumerate(ranked, 1)
        if 0 < prune_to < rank
    }


def _items(folders: Iterable[Path], model: str) -> list[ItemScore]:
    """Return the item scores of a model from the folder that has them."""
    for folder in folders:
        if (path := folder / model / "items.jsonl").is_file():
            return list(read_records(path, ItemScore))
    raise UserError(f"selector: no item scores of {model}: rerun judge-eval")


def _frontier(
    references: Sequence[ModelScores],
    baselines: Sequence[ModelScores],
    judged: Sequence[ModelScores],
    ruling: Ruling,
    stability: PickStability,
) -> list[dict[str, Any]]:
    """Return the points of the (D, G) plane, references first; duplicates stand for no point of their own."""
    groups = (("reference", references), ("baseline", baselines), ("candidate", judged))
    points = [(item, kind) for kind, items in groups for item in items]
    return [
        {
            "id": item.model,
            "kind": kind,
            "domain": item.domain,
            "general": item.general,
            "suites": {suite.suite: suite.points for suite in item.suites},
            "on_front": kind == "candidate" and item.model in ruling.front,
            "picked": kind == "candidate" and item.model == ruling.pick,
            "win_share": stability.wins[item.model] if kind == "candidate" else None,
        }
        for item, kind in points
    ]


def _metrics(judged: Sequence[ModelScores], ruling: Ruling, stability: PickStability) -> dict[str, float]:
    """Count the candidates that met both floors; the pick's D and G in points where there is one, and its share."""
    metrics = {"candidates": float(len(ruling.verdicts))}
    metrics["feasible"] = float(sum(verdict.kept_until >= 2 for verdict in ruling.verdicts))
    metrics["on_front"] = float(len(ruling.front))
    metrics["none_feasible_share"] = stability.none_feasible
    for item in judged:
        if item.model == ruling.pick:
            metrics |= {"domain": item.domain, "general": item.general, "win_share": stability.wins[item.model]}
    return metrics


def _markdown(selection: Selection) -> str:
    head = f"**Pick: {selection.pick}**" if selection.pick else "**No feasible candidate**"
    wish = f", by {selection.wish}" if selection.wish else ""
    wins, resamples = selection.stability.wins, selection.stability.resamples
    rows = [
        f"| {item.candidate} | {item.domain_floor} | {item.general_floor} | {item.dominance} | {item.final} | "
        f"{_percent(wins.get(item.candidate))} |"
        for item in selection.verdicts
    ]
    table = [
        "| candidate | domain floor | general floor | dominance | final | wins |",
        "| --- | --- | --- | --- | --- | ---: |",
        *rows,
    ]
    none = f"Of {resamples} resamples of the validation items {_percent(selection.stability.none_feasible)} pick none."
    head = f"{head}{wish}, tolerance {selection.tolerance_points:g} points, {SPLIT} only"
    return "\n".join([head, "", *table, "", none])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _dataset(digest: str, pairs: Sequence[QAPair]) -> Lineage:
    """Return the entry of the validation split: made of the questions that qa-build recorded one by one."""
    contents = tuple(("contains", digest_json(to_json(pair))) for pair in pairs)
    return Lineage("dataset", digest, SPLIT, {"split": SPLIT, "pairs": len(pairs)}, contents)


def _decision(
    selection: Selection, candidates: Sequence[Candidate], vanilla: ModelScores, judged: Sequence[ModelScores]
) -> Lineage:
    chosen = selection.candidate_digest
    considered = dict.fromkeys(item.digest for item in candidates if item.digest != chosen)
    inputs = [("chosen", chosen)] if chosen else []
    inputs += [("considered", digest) for digest in considered]
    inputs += [("compared-with", vanilla.checkpoint_digest), ("validated-on", selection.dataset_digest)]
    inputs += [(WEIGHED, digest_json(scores_payload(scores))) for scores in (*judged, vanilla)]
    payload = to_json(selection)
    name = f"pick {selection.pick}" if selection.pick else "no feasible candidate"
    name += f" ({selection.wish})" * bool(selection.wish)
    return Lineage("decision", digest_json(payload), name, payload, tuple(inputs))
