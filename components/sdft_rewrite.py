"""Kubeflow component of stages/sdft_rewrite.py."""

from kfp import dsl

from iar.components import component


@component
def sdft_rewrite(
    run_file: str,
    data: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Let the model write the training answers in its own words, for self-distillation."""
    from iar.services.task_process import run_component

    return run_component("sdft_rewrite", run_file, {"data": data, "base": base}, metrics, summary)
