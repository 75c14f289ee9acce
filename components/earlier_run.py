"""Kubeflow component of stages/earlier_run.py."""

from kfp import dsl

from iar.components import component


@component
def earlier_run(
    run_file: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Find the run that this one is built on, and what the model learned in it and before."""
    from iar.services.task_process import run_component

    return run_component("earlier_run", run_file, {"base": base}, metrics, summary)
