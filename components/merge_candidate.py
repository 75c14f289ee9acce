"""Kubeflow component of stages/merge_candidate.py."""

from kfp import dsl

from iar.components import component


@component
def merge_candidate(
    run_file: str,
    base: str,
    tuned: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    name: str,
    shard: int,
    shards: int,
    earlier: str = "",
    fisher: str = "",
) -> str:
    """Merge one part of the candidate grid."""
    from iar.services.task_process import run_component

    inputs = {"base": base, "tuned": tuned, "earlier": earlier, "fisher": fisher}
    return run_component("merge_candidate", run_file, inputs, metrics, summary, name=name, shard=shard, shards=shards)
