"""The pipeline: documents -> qa-build -> inject -> align -> merge-candidate -> judge-eval -> selector -> register."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp import compiler, dsl

from iar.components.align import align
from iar.components.base_model import base_model
from iar.components.baseline import baseline
from iar.components.inject import inject
from iar.components.judge_eval import judge_eval
from iar.components.locked_test import locked_test
from iar.components.merge_candidate import merge_candidate
from iar.components.qa_build import qa_build
from iar.components.register import register
from iar.components.selector import selector
from iar.config import PlatformSection, RunFile
from iar.methods.job_spec import STATE
from iar.services.stage_keys import RECIPES


def build(settings: RunFile) -> Any:
    """Return the pipeline of a run file; its one parameter is the run file's text."""
    shards = settings.platform.candidate_shards

    def task(component: Any, name: str, /, **inputs: Any) -> Any:
        made = component(**inputs).set_display_name(name).set_caching_options(False)
        made.set_container_image(settings.platform.image)
        if settings.platform.backend == "kubeflow":
            _on_cluster(made, settings.platform, _processes(component, settings.platform))
        return made.outputs["Output"]

    @dsl.pipeline(name="iar-post-training", description="Inject, Align, Recover: documents into a model's weights.")
    def post_training(run_file: str = settings.canonical()) -> None:
        base = task(base_model, "base-model", run_file=run_file)
        data = task(qa_build, "qa-build", run_file=run_file)
        common = {"run_file": run_file, "data": data, "base": base}

        injected = task(inject, "inject", **common)
        tuned = task(align, "align", name="align", start=injected, **common)
        vanilla = task(align, "vanilla", name="vanilla", **common)
        trained = {"vanilla": vanilla, "tuned": tuned}

        name = "judge-eval-references"
        references = task(judge_eval, name, name=name, **trained, **common)
        candidates, scores = [], []
        for shard in range(1, shards + 1):
            name = f"merge-candidate-{shard}"
            part = {"name": name, "shard": shard, "shards": shards}
            candidates.append(task(merge_candidate, name, run_file=run_file, base=base, tuned=tuned, **part))
            name = f"judge-eval-candidates-{shard}"
            scores.append(task(judge_eval, name, name=name, candidates=candidates[-1], **common))

        made: list[Any] = []
        beside: dict[str, Any] = {}
        available = {"data": data, "base": base, "inject": injected, **trained}
        for recipe in settings.baselines.recipes:
            if recipe not in RECIPES:  # vanilla-sft is trained in every run
                continue
            name = f"baseline-{recipe}"
            needed = {role: available[role] for role in RECIPES[recipe].needs}
            made.append(task(baseline, name, run_file=run_file, name=name, recipe=recipe, **needed))
        if made:
            name = "judge-eval-baselines"
            beside["baseline_scores"] = task(judge_eval, name, name=name, baselines=made, **common)

        judged = {"references": references, "candidates": candidates, "scores": scores}
        pick = task(selector, "selector", run_file=run_file, data=data, **judged, **beside)
        if made:
            beside["baselines"] = made
        tested = task(locked_test, "locked-test", selector=pick, **judged, **trained, **common, **beside)
        outcome = {"inject": injected, "selector": pick, "locked_test": tested}
        task(register, "register", **outcome, **judged, **trained, **common, **beside)

    return post_training


def _processes(component: Any, platform: PlatformSection) -> int:
    """Return the processes on GPUs that one node of a task has; of a training they are its job's."""
    if component in (inject, align, baseline):
        return platform.processes // platform.pool.nodes
    return 1 if component in (judge_eval, locked_test) else 0


def _on_cluster(task: Any, platform: PlatformSection, processes: int) -> None:
    """Give a task the state volume and the secrets, and what its processes need on the pool."""
    from kfp import kubernetes

    pool = platform.pool
    kubernetes.mount_pvc(task, pvc_name=pool.state_claim, mount_path=STATE)
    for variable, place in pool.secrets.items():
        secret, _, key = place.partition("/")
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={key: variable})
    if not processes:
        return
    cpus, memory = f"{pool.cpus_per_process * processes:g}", f"{pool.memory_gb_per_process * processes:g}Gi"
    task.set_cpu_request(cpus).set_cpu_limit(cpus).set_memory_request(memory).set_memory_limit(memory)
    if pool.gpu:
        task.set_accelerator_type(pool.gpu).set_accelerator_limit(processes)
    for label, value in pool.node_selector.items():
        kubernetes.add_node_selector(task, label_key=label, label_value=value)
    for key in pool.tolerations:
        kubernetes.add_toleration(task, key=key, operator="Exists", effect="NoSchedule")


def compile_pipeline(run_file: RunFile, path: Path) -> None:
    """Write the pipeline as intermediate representation (YAML); the same run file gives the same bytes."""
    compiler.Compiler().compile(build(run_file), str(path))


def compiled_pipeline(run_file: RunFile) -> str:
    """Return the intermediate representation as text."""
    with TemporaryDirectory(prefix="iar-compile-") as folder:
        compile_pipeline(run_file, path := Path(folder) / "pipeline.yaml")
        return path.read_text(encoding="utf-8")
