"""Kubeflow component of stages/qa_build.py."""

from kfp import dsl

from iar.components import component


@component
def qa_build(
    run_file: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    base: str = "",
    earlier: str = "",
) -> str:
    """Turn the documents into questions with reference answers; `base` counts tokens where the run file asks for it."""
    from iar.services.task_process import run_component

    return run_component("qa_build", run_file, {"base": base, "earlier": earlier}, metrics, summary)
