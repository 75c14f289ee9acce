"""Kubeflow component of stages/register.py."""

from kfp import dsl

from iar.components import component


@component
def register(
    run_file: str,
    data: str,
    base: str,
    inject: str,
    vanilla: str,
    tuned: str,
    references: str,
    candidates: list[str],
    scores: list[str],
    selector: str,
    locked_test: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
    frontier: dsl.Output[dsl.HTML],
    baselines: list[str] = [],  # noqa: B006
    baseline_scores: str = "",
    earlier: str = "",
) -> str:
    """Write the report and register the pick."""
    from iar.services.task_process import run_component

    inputs = {
        "data": data, "base": base, "inject": inject, "vanilla": vanilla, "tuned": tuned, "references": references,
        "candidates": candidates, "scores": scores, "selector": selector, "locked_test": locked_test,
        "baselines": baselines, "baseline_scores": baseline_scores, "earlier": earlier,
    }  # fmt: skip
    return run_component("register", run_file, inputs, metrics, summary, page=page, frontier=frontier)
