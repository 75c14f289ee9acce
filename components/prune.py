"""Kubeflow component of stages/prune.py."""

from kfp import dsl

from iar.components import component


@component
def prune(
    run_file: str,
    data: str,
    base: str,
    candidates: list[str],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Rank all candidates by bits per byte, and keep the best for evaluation."""
    from iar.services.task_process import run_component

    inputs = {"data": data, "base": base, "candidates": candidates}
    return run_component("prune", run_file, inputs, metrics, summary)
