"""Kubeflow component of stages/align.py."""

from kfp import dsl

from iar.components import launcher


@launcher()
def align(
    run_file: str,
    data: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    job: dsl.Output[dsl.Artifact],
    task_config: dsl.TaskConfig,
    name: str,
    start: str = "",
    earlier: str = "",
) -> str:
    """Train answers to the questions, from `start` or, without it, from where Inject starts (vanilla)."""
    from iar.services.task_process import run_component

    inputs = {"data": data, "base": base, "start": start, "earlier": earlier}
    return run_component("align", run_file, inputs, metrics, summary, name=name, task_config=vars(task_config), job=job)
