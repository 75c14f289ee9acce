"""Kubeflow component of services/form.py: the run file that all other tasks are given."""

from typing import NamedTuple

from kfp import dsl

from iar.components import component


@component
def form(
    compiled: str,
    summary: dsl.Output[dsl.Markdown],
    run_file: str,
    model: str,
    documents: str,
    recipe: str,
    inject_epochs: int,
    align_epochs: int,
    gpu_pool: str,
    experiment: str,
) -> NamedTuple("Effective", [("run_file", str), ("node_selector", dict)]):  # type: ignore[valid-type]
    """Make the effective run file from the form; say in one line what is wrong with it."""
    from iar.services.form import run_form

    fields: dict[str, str | int] = {
        "run_file": run_file, "model": model, "documents": documents, "recipe": recipe,
        "inject_epochs": inject_epochs, "align_epochs": align_epochs, "gpu_pool": gpu_pool, "experiment": experiment,
    }  # fmt: skip
    made = run_form(fields, compiled, summary)
    return made.canonical(), dict(made.platform.pool.node_selector)
