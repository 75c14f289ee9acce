"""Kubeflow component of stages/fisher.py."""

from kfp import dsl

from iar.components import component


@component
def fisher(
    run_file: str,
    data: str,
    base: str,
    tuned: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    earlier: str = "",
) -> str:
    """Measure what theta_0 and theta_IA are sure of, to merge each tensor by its own weight."""
    from iar.services.task_process import run_component

    inputs = {"data": data, "base": base, "tuned": tuned, "earlier": earlier}
    return run_component("fisher", run_file, inputs, metrics, summary)
