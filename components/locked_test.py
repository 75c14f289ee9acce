"""Kubeflow component of stages/locked_test.py."""

from kfp import dsl

from iar.components import component


@component
def locked_test(
    run_file: str,
    data: str,
    selector: str,
    base: str,
    vanilla: str,
    tuned: str,
    references: str,
    candidates: list[str],
    scores: list[str],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    baselines: list[str] = [],  # noqa: B006
    baseline_scores: str = "",
    earlier: str = "",
) -> str:
    """Score the pick and the references once on the locked test questions."""
    from iar.services.task_process import run_component

    inputs = {
        "data": data, "selector": selector, "base": base, "vanilla": vanilla, "tuned": tuned,
        "references": references, "candidates": candidates, "scores": scores,
        "baselines": baselines, "baseline_scores": baseline_scores, "earlier": earlier,
    }  # fmt: skip
    return run_component("locked_test", run_file, inputs, metrics, summary)
