"""Kubeflow component of stages/qa_documents.py."""

from kfp import dsl

from iar.components import component


@component
def qa_documents(run_file: str, metrics: dsl.Output[dsl.Metrics], summary: dsl.Output[dsl.Markdown]) -> str:
    """Read, filter and decontaminate the documents that several tasks make questions of."""
    from iar.services.task_process import run_component

    return run_component("qa_documents", run_file, {}, metrics, summary)
