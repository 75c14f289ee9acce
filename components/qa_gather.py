"""Kubeflow component of stages/qa_build.py where other tasks have made the questions."""

from kfp import dsl

from iar.components import component


@component
def qa_gather(
    run_file: str,
    documents: str,
    lessons: list[str],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    earlier: str = "",
) -> str:
    """Turn what the shards made into one dataset, the same as a single task would have made."""
    from iar.services.task_process import run_component

    inputs = {"documents": documents, "lessons": lessons, "earlier": earlier}
    return run_component("qa_build", run_file, inputs, metrics, summary)
