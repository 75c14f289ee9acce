"""Kubeflow component of stages/judge_eval.py."""

from kfp import dsl

from iar.components import component


@component
def judge_eval(
    run_file: str,
    data: str,
    base: str,
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    name: str,
    candidates: str = "",
    vanilla: str = "",
    tuned: str = "",
    baselines: list[str] = [],  # noqa: B006
    pruned: str = "",
    inject: str = "",
    earlier: str = "",
) -> str:
    """Score models on the validation questions and the general suites."""
    from iar.services.task_process import run_component

    inputs = {
        "data": data, "base": base, "candidates": candidates, "vanilla": vanilla, "tuned": tuned,
        "baselines": baselines, "pruned": pruned, "inject": inject,
        "earlier": earlier,
    }  # fmt: skip
    return run_component("judge_eval", run_file, inputs, metrics, summary, name=name)
