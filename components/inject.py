"""Kubeflow component of stages/inject.py."""

from kfp import dsl

from iar.components import launcher


@launcher()
def inject(
    run_file: str,
    data: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    job: dsl.Output[dsl.Artifact],
    task_config: dsl.TaskConfig,
    earlier: str = "",
) -> str:
    """Train theta_0, or what an earlier run came to, to reconstruct the documents: theta_I."""
    from iar.services.task_process import run_component

    inputs = {"data": data, "base": base, "earlier": earlier}
    return run_component("inject", run_file, inputs, metrics, summary, task_config=vars(task_config), job=job)
