"""Kubeflow component of stages/baseline.py."""

from kfp import dsl

from iar.components import launcher


@launcher()
def baseline(
    run_file: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    job: dsl.Output[dsl.Artifact],
    task_config: dsl.TaskConfig,
    name: str,
    recipe: str,
    data: str = "",
    inject: str = "",
    tuned: str = "",
    vanilla: str = "",
    rewrites: str = "",
) -> str:
    """Train one control or baseline, by the name of its recipe."""
    from iar.services.task_process import run_component

    inputs = {
        "data": data, "base": base, "inject": inject, "tuned": tuned, "vanilla": vanilla, "rewrites": rewrites,
    }  # fmt: skip
    given = vars(task_config)
    return run_component(
        "baseline", run_file, inputs, metrics, summary, name=name, recipe=recipe, task_config=given, job=job
    )
