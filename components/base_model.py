"""Kubeflow component of stages/base_model.py."""

from kfp import dsl

from iar.components import component


@component
def base_model(
    run_file: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Get theta_0 as one verified folder."""
    from iar.services.task_process import run_component

    return run_component("base_model", run_file, {}, metrics, summary)
