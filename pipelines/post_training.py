"""The pipeline: documents -> qa-build -> inject -> align -> merge-candidate -> judge-eval -> selector -> register."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp import compiler, dsl

from iar.components.align import align
from iar.components.base_model import base_model
from iar.components.baseline import baseline
from iar.components.earlier_run import earlier_run
from iar.components.fisher import fisher
from iar.components.form import form
from iar.components.inject import inject
from iar.components.judge_eval import judge_eval
from iar.components.locked_test import locked_test
from iar.components.merge_candidate import merge_candidate
from iar.components.prune import prune
from iar.components.qa_build import qa_build
from iar.components.qa_documents import qa_documents
from iar.components.qa_gather import qa_gather
from iar.components.qa_shard import qa_shard
from iar.components.register import register
from iar.components.sdft_rewrite import sdft_rewrite
from iar.components.selector import selector
from iar.config import PlatformSection, PoolSection, RunFile
from iar.methods.job_spec import STATE, USER
from iar.services.stage_keys import RECIPES

COMPUTING = (fisher, judge_eval, locked_test, prune, sdft_rewrite)
"""Tasks that run a model over many texts, each on one GPU of a cluster; merging, too, where it is asked for one."""


def build(settings: RunFile) -> Any:
    """Return the pipeline compiled for a run file; its parameters are a form whose fields may all stay empty."""
    platform = settings.platform
    shards = platform.candidate_shards

    @dsl.pipeline(name="iar-post-training", description="Inject, Align, Recover: documents into a model's weights.")
    def post_training(
        run_file: str = "",
        model: str = "",
        documents: str = "",
        recipe: str = "",
        inject_epochs: int = 0,
        align_epochs: int = 0,
        gpu_pool: str = "",
        experiment: str = "",
    ) -> None:
        """Compile the tasks; an empty field or 0 means what the run file says.

        Args:
            run_file: Run file as text, or where it lies: /state/..., https://... or s3://...; empty = the compiled one.
            model: Instruct model: known name, folder or hub id.
            documents: Folder of the documents, on the state volume.
            recipe: Rows of Inject as continuation:rewrite:instruction, such as 1:1:2.
            inject_epochs: Epochs of Inject; 0 = as the run file says.
            align_epochs: Epochs of Align and vanilla; 0 = as the run file says.
            gpu_pool: Labels of the nodes with the GPUs, such as nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB.
            experiment: MLflow experiment.
        """
        filled = form(
            compiled=settings.canonical(), run_file=run_file, model=model, documents=documents, recipe=recipe,
            inject_epochs=inject_epochs, align_epochs=align_epochs, gpu_pool=gpu_pool, experiment=experiment,
        )  # fmt: skip
        _place(filled, "run-file", platform)
        effective, nodes = filled.outputs["run_file"], filled.outputs["node_selector"]

        def task(component: Any, name: str, /, **inputs: Any) -> Any:
            made = component(run_file=effective, **inputs)
            _place(made, name, platform)
            merging = component is merge_candidate and platform.merge_device != "cpu"
            if (merging or component in COMPUTING) and platform.backend == "kubeflow":
                _on_gpu(made, platform.pool, nodes)
            return made.outputs["Output"]

        base = task(base_model, "base-model")
        # What the model has learned before; without it no task is given anything more.
        earlier = {"earlier": task(earlier_run, "earlier-run", base=base)} if settings.run.on else {}
        # The questions depend on the model only where its tokens bound something.
        counted = {"base": base} if settings.qa_build.counts_tokens else {}
        # Processes of one task share a machine's cores; tasks share a cluster's machines.
        parts = settings.qa_build.shards if platform.backend == "kubeflow" else 1
        if parts == 1:
            data = task(qa_build, "qa-build", **counted, **earlier)
        else:
            documents_read = task(qa_documents, "qa-documents")
            lessons = []
            for shard in range(1, parts + 1):
                name = f"qa-build-{shard}"
                part = {"name": name, "shard": shard, "shards": parts}
                lessons.append(task(qa_shard, name, documents=documents_read, **part, **counted))
            data = task(qa_gather, "qa-build", documents=documents_read, lessons=lessons, **earlier)
        common = {"data": data, "base": base}

        injected = task(inject, "inject", **common, **earlier)
        tuned = task(align, "align", name="align", start=injected, **common)
        vanilla = task(align, "vanilla", name="vanilla", **common, **earlier)
        trained = {"vanilla": vanilla, "tuned": tuned}

        name = "judge-eval-references"
        references = task(judge_eval, name, name=name, inject=injected, **trained, **common, **earlier)
        candidates, scores = [], []
        weighing = settings.recover.fisher_weight
        known = {"fisher": task(fisher, "fisher", tuned=tuned, **common, **earlier)} if weighing else {}
        for shard in range(1, shards + 1):
            name = f"merge-candidate-{shard}"
            part = {"name": name, "shard": shard, "shards": shards}
            # One task compares the changes of the document sets; weights for them may be in any.
            changes = earlier if shard == 1 or settings.recover.set_weights else {}
            candidates.append(task(merge_candidate, name, base=base, tuned=tuned, **part, **changes, **known))
        pruned = {"pruned": task(prune, "prune", candidates=candidates, **common)} if settings.select.prune_to else {}
        for shard, merged in enumerate(candidates, 1):
            name = f"judge-eval-candidates-{shard}"
            scores.append(task(judge_eval, name, name=name, candidates=merged, **pruned, **common))

        made: list[Any] = []
        beside: dict[str, Any] = {}
        available = {"data": data, "base": base, "inject": injected, **trained}
        if "sdft" in settings.baselines.recipes:
            available["rewrites"] = task(sdft_rewrite, "sdft-rewrite", **common)
        for recipe in settings.baselines.recipes:
            if recipe not in RECIPES:  # vanilla-sft is trained in every run
                continue
            name = f"baseline-{recipe}"
            needed = {role: available[role] for role in RECIPES[recipe].needs}
            made.append(task(baseline, name, name=name, recipe=recipe, **needed))
        if made:
            name = "judge-eval-baselines"
            beside["baseline_scores"] = task(judge_eval, name, name=name, baselines=made, **common)

        judged = {"references": references, "candidates": candidates, "scores": scores}
        pick = task(selector, "selector", data=data, **judged, **beside)
        if made:
            beside["baselines"] = made
        beside |= earlier
        tested = task(locked_test, "locked-test", selector=pick, **judged, **trained, **common, **beside)
        outcome = {"inject": injected, "selector": pick, "locked_test": tested}
        task(register, "register", **outcome, **judged, **trained, **common, **beside)

    return post_training


def _place(task: Any, name: str, platform: PlatformSection) -> None:
    """Name a task and its image; on a cluster give it the state volume, the secrets and the user of our images.

    A task that trains asks for nothing else: its job takes the pool from the run file.
    """
    task.set_display_name(name).set_caching_options(False).set_container_image(platform.image)
    if platform.backend != "kubeflow":
        return
    from kfp import kubernetes

    kubernetes.set_security_context(task, run_as_user=USER, run_as_group=USER, run_as_non_root=True)
    if platform.pool.state_claim:
        kubernetes.mount_pvc(task, pvc_name=platform.pool.state_claim, mount_path=STATE)
    else:
        kubernetes.empty_dir_mount(task, volume_name="state", mount_path=STATE)
    for variable, place in platform.pool.secrets.items():
        secret, _, key = place.partition("/")
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={key: variable})


def _on_gpu(task: Any, pool: PoolSection, nodes: Any) -> None:
    """Let a task have one GPU, on the nodes that the run file or the form names."""
    from kfp import kubernetes

    cpus, memory = f"{pool.cpus_per_process:g}", f"{pool.memory_gb_per_process:g}Gi"
    task.set_cpu_request(cpus).set_cpu_limit(cpus).set_memory_request(memory).set_memory_limit(memory)
    if pool.gpu:
        task.set_accelerator_type(pool.gpu).set_accelerator_limit(1)
    kubernetes.add_node_selector_json(task, nodes)
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
