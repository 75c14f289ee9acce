"""Kubeflow component of stages/selector.py."""

from kfp import dsl

from iar.components import component


@component
def selector(
    run_file: str,
    data: str,
    references: str,
    candidates: list[str],
    scores: list[str],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    baseline_scores: str = "",
) -> str:
    """Pick a candidate by the selection rule, or none."""
    from iar.services.task_process import run_component

    inputs = {
        "data": data, "references": references, "candidates": candidates, "scores": scores,
        "baseline_scores": baseline_scores,
    }  # fmt: skip
    return run_component("selector", run_file, inputs, metrics, summary)
