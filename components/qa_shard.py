"""Kubeflow component of stages/qa_shard.py."""

from kfp import dsl

from iar.components import component


@component
def qa_shard(
    run_file: str,
    documents: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    name: str,
    shard: int,
    shards: int,
    base: str = "",
) -> str:
    """Make questions of one part of the documents; `base` counts tokens where the run file asks for it."""
    from iar.services.task_process import run_component

    inputs = {"documents": documents, "base": base}
    return run_component("qa_shard", run_file, inputs, metrics, summary, name=name, shard=shard, shards=shards)
