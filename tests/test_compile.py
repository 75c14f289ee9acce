"""The compiled pipeline: the same bytes every time, and the same as the golden file."""

import os
import re
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar.config import RunFile
from iar.methods.job_spec import USER
from iar.pipelines.post_training import build, compile_pipeline, compiled_pipeline
from iar.services.form import COMPILED, FIELDS
from iar.services.pipeline_resources import kubernetes_resources
from iar.services.run_files import load_run_file
from tests.crd_schemas import check, needs_crds

ROOT = Path(__file__).parents[1]
RUN_FILES = [*sorted((ROOT / "pipelines/runs").glob("*.yaml")), *sorted(ROOT.glob("manifests/overlays/*/run.yaml"))]
GOLDEN = Path(__file__).parent / "golden" / "post_training.yaml"


def golden_settings(shards: int = 2) -> RunFile:
    settings: dict[str, Any] = {
        "candidate_shards": shards,
        "image": "registry.example/iar:1",
        "backend": "kubeflow",
        "processes": 16,
    }
    settings["pool"] = {"nodes": 2, "secrets": {"KEY": "judges/a"}}
    return RunFile.model_validate({"run": {"name": "golden"}, "documents": {"path": "docs"}, "platform": settings})


def compiled(folder: Path, shards: int = 2) -> bytes:
    compile_pipeline(golden_settings(shards), folder / "pipeline.yaml")
    return (folder / "pipeline.yaml").read_bytes()


def test_the_pipeline_is_the_golden_one(tmp_path: Path) -> None:
    now = compiled(tmp_path)
    assert now == compiled(tmp_path)
    if os.environ.get("IAR_UPDATE_GOLDEN"):
        GOLDEN.write_bytes(now)
    assert now == GOLDEN.read_bytes(), (
        f"the compiled pipeline differs from {GOLDEN.name}: when that is meant, run the test with IAR_UPDATE_GOLDEN=1"
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    spec: dict[str, Any] = next(yaml.safe_load_all(compiled(tmp_path_factory.mktemp("compiled"), shards=12)))
    return spec


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Kubernetes is told of each task's pod, by the names of components."""
    documents = list(yaml.safe_load_all(compiled(tmp_path_factory.mktemp("compiled"), shards=1)))
    executors: dict[str, Any] = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return {name.removeprefix("exec-"): executor for name, executor in executors.items()}


def test_every_task_has_a_readable_name_and_kfp_caches_none(tasks: dict[str, Any]) -> None:
    dag = tasks["root"]["dag"]["tasks"]
    names = {task["taskInfo"]["name"] for task in dag.values()}
    shards = range(1, 13)
    assert names == {
        "run-file", "base-model", "qa-build", "inject", "align", "vanilla", "judge-eval-references", "selector",
        "locked-test", "register",
        *(f"merge-candidate-{n}" for n in shards), *(f"judge-eval-candidates-{n}" for n in shards),
    }  # fmt: skip
    assert not any(task["cachingOptions"].get("enableCache") for task in dag.values())


def compiled_tasks(**sections: Any) -> dict[str, Any]:
    run_file = RunFile.model_validate(golden_settings(1).model_dump(mode="json") | sections)
    spec = next(yaml.safe_load_all(compiled_pipeline(run_file)))
    tasks: dict[str, Any] = {task["taskInfo"]["name"]: task for task in spec["root"]["dag"]["tasks"].values()}
    return tasks


def test_a_qa_build_in_shards_is_a_task_a_shard_between_the_documents_and_the_dataset() -> None:
    one = compiled_tasks()
    three = compiled_tasks(qa_build={"shards": 3, "chunk_tokens": 60})
    assert set(three) - set(one) == {"qa-documents", "qa-build-1", "qa-build-2", "qa-build-3"}
    for number in (1, 2, 3):
        shard = three[f"qa-build-{number}"]
        assert set(shard["dependentTasks"]) == {"base-model", "qa-documents", "form"}
        values = {
            name: given.get("runtimeValue", {}).get("constant") for name, given in shard["inputs"]["parameters"].items()
        }
        assert (values["name"], values["shard"], values["shards"]) == (f"qa-build-{number}", number, 3)
    assert {name for name in three["qa-build"]["dependentTasks"] if name.startswith("qa-")} == {
        "qa-documents", "qa-shard", "qa-shard-2", "qa-shard-3",
    }  # fmt: skip


def test_shards_of_the_qa_build_are_processes_of_one_task_on_one_machine() -> None:
    local = golden_settings(1).model_dump(mode="json")["platform"] | {"backend": "local"}
    assert set(compiled_tasks(platform=local, qa_build={"shards": 3})) == set(compiled_tasks(platform=local))


def test_only_the_recipes_asked_are_tasks(tmp_path: Path) -> None:
    sections = {"run": {"name": "x"}, "documents": {"path": "docs"}}
    asked = RunFile.model_validate(sections | {"baselines": {"recipes": ["fapm", "vanilla-sft", "budget-match"]}})
    compile_pipeline(asked, tmp_path / "pipeline.yaml")
    dag = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())["root"]["dag"]["tasks"]
    named = {task["taskInfo"]["name"]: task for task in dag.values()}
    added = {name for name in named if "baseline" in name}
    assert added == {"baseline-budget-match", "baseline-fapm", "judge-eval-baselines"}
    given = named["baseline-budget-match"]["inputs"]["parameters"]
    assert given["recipe"]["runtimeValue"]["constant"] == "budget-match"
    assert {"inject", "tuned"} <= set(given) and "vanilla" not in given
    assert set(named["baseline-fapm"]["inputs"]["parameters"]) & {"data", "vanilla", "tuned"} == {"data", "vanilla"}
    for name in ("selector", "locked-test", "register"):
        assert "baseline_scores" in named[name]["inputs"]["parameters"]


def test_sdft_generates_on_a_gpu_in_a_task_of_its_own(tmp_path: Path) -> None:
    settings = golden_settings().model_dump(mode="json") | {"baselines": {"recipes": ["sdft"]}}
    compile_pipeline(RunFile.model_validate(settings), tmp_path / "pipeline.yaml")
    pipeline, platform = yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text())
    named = {task["taskInfo"]["name"]: task for task in pipeline["root"]["dag"]["tasks"].values()}
    given = named["baseline-sdft"]["inputs"]["parameters"]["rewrites"]["taskOutputParameter"]["producerTask"]
    assert given == "sdft-rewrite"
    executors = pipeline["deploymentSpec"]["executors"]
    asked = executors["exec-sdft-rewrite"]["container"]["resources"]
    assert asked == executors["exec-judge-eval"]["container"]["resources"]
    assert asked["accelerator"]["resourceCount"] == "1"
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert pods["exec-sdft-rewrite"] == pods["exec-judge-eval"] and "nodeSelector" in pods["exec-sdft-rewrite"]
    # The training launches a job, which may need every GPU of the pool: its own task holds none.
    assert "resources" not in executors["exec-baseline"]["container"]


def test_tensors_are_weighed_in_a_task_of_its_own_where_the_grid_asks_for_it() -> None:
    asked = compiled_tasks(recover={"fisher_weight": [0.5]})
    assert set(asked) - set(compiled_tasks()) == {"fisher"}
    assert {"qa-build", "base-model", "align"} <= set(asked["fisher"]["dependentTasks"])
    assert "fisher" in asked["merge-candidate-1"]["dependentTasks"]


def test_merging_has_a_gpu_where_it_is_asked_for_one(tmp_path: Path) -> None:
    platform = golden_settings().model_dump(mode="json")["platform"] | {"merge_device": "cuda"}
    settings = golden_settings().model_dump(mode="json") | {"platform": platform}
    compile_pipeline(RunFile.model_validate(settings), tmp_path / "pipeline.yaml")
    pipeline, kubernetes = yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text())
    executors = pipeline["deploymentSpec"]["executors"]
    merging = [name for name in executors if name.startswith("exec-merge-candidate")]
    pods = kubernetes["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(merging) == 2
    for name in merging:
        assert executors[name]["container"]["resources"] == executors["exec-judge-eval"]["container"]["resources"]
        assert pods[name] == pods["exec-judge-eval"] and "nodeSelector" in pods[name]


def test_every_component_runs_in_the_image_of_the_run_file_and_installs_nothing(tasks: dict[str, Any]) -> None:
    executors = tasks["deploymentSpec"]["executors"]
    containers = [executor["container"] for executor in executors.values()]
    assert {container["image"] for container in containers} == {"registry.example/iar:1"}
    assert not any("pip install" in part for container in containers for part in container["command"])


def test_the_form_is_short_typed_explained_and_may_stay_empty(tasks: dict[str, Any]) -> None:
    parameters = tasks["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) == {"run_file", *FIELDS}
    for name, parameter in parameters.items():
        number = name.endswith("epochs")
        assert parameter["parameterType"] == ("NUMBER_INTEGER" if number else "STRING")
        assert parameter["isOptional"] and not parameter["defaultValue"] and parameter["description"], name


def test_all_tasks_are_given_what_the_form_makes_of_the_compiled_run_file(tasks: dict[str, Any]) -> None:
    dag = dict(tasks["root"]["dag"]["tasks"])
    form = dag.pop("form")["inputs"]["parameters"]
    assert RunFile.model_validate_json(form.pop("compiled")["runtimeValue"]["constant"]).run.name == "golden"
    assert {name: given["componentInputParameter"] for name, given in form.items()} == {name: name for name in form}
    for name, task in dag.items():
        given = task["inputs"]["parameters"]["run_file"]
        assert given == {"taskOutputParameter": {"outputParameterKey": "run_file", "producerTask": "form"}}, name


CHANGED: dict[str, Any] = {
    "baselines.recipes": ["replay"],
    "platform.backend": "local",
    "platform.candidate_shards": 3,
    "platform.pool.cpus_per_process": 3,
    "platform.pool.memory_gb_per_process": 3,
    "platform.pool.secrets": {},
    "platform.pool.tolerations": ["other"],
    "qa_build.shards": 3,
    "select.prune_to": 2,
    "inject.recipe": "1:1:2",
    "inject.epochs": 5,
    "align.epochs": 5,
    "platform.pool.job": "trainjob",
    "platform.pool.node_selector": {"a": "b"},
    "platform.pool.nodes": 1,
    "platform.processes": 8,
}


@cache
def tasks_compiled_for(*changed: str) -> str:
    """Return the pipeline of the golden run file with other values, without the run file itself."""
    data = golden_settings().model_dump(mode="json")
    for key in changed:
        *sections, name = key.split(".")
        reduce(lambda part, section: part[section], sections, data)[name] = CHANGED.get(key, "other")
    settings = RunFile.model_validate(data)
    return compiled_pipeline(settings).replace(settings.canonical(), "")


def test_what_a_form_may_change_is_in_no_compiled_task() -> None:
    free = [*FIELDS.values(), "platform.pool.job", "platform.pool.nodes", "platform.processes", "platform.pool.queue"]
    assert tasks_compiled_for(*free) == tasks_compiled_for()


@pytest.mark.parametrize("key", COMPILED)
def test_what_a_form_may_not_change_is_in_the_compiled_tasks(key: str) -> None:
    assert tasks_compiled_for(key) != tasks_compiled_for()


def test_every_task_on_a_cluster_mounts_the_state_volume_and_finds_the_secrets(pods: dict[str, Any]) -> None:
    assert {"qa-build", "inject", "align", "merge-candidate", "judge-eval", "register"} <= set(pods)
    for name, pod in pods.items():
        (mount,) = pod["pvcMount"]
        assert (mount["constant"], mount["mountPath"]) == ("iar-state", "/state"), name
        (secret,) = pod["secretAsEnv"]
        assert secret["secretName"] == "judges" and secret["keyToEnv"] == [{"secretKey": "a", "envVar": "KEY"}], name


def test_without_a_claim_every_task_has_a_disk_of_its_own() -> None:
    whole = {"run": {"name": "t", "store": "s3://models/iar"}, "documents": {"path": "/data"}}
    platform = {"backend": "kubeflow", "pool": {"state_claim": ""}}
    text = compiled_pipeline(RunFile.model_validate(whole | {"platform": platform}))
    deployed = list(yaml.safe_load_all(text))[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    assert all([mount["mountPath"] for mount in pod["emptyDirMounts"]] == ["/state"] for pod in deployed)
    assert "pvcMount" not in text


def test_the_ui_is_shown_numbers_and_text_of_all_and_jobs_report_and_frontier(tasks: dict[str, Any]) -> None:
    shown = {
        name.removeprefix("comp-"): {
            output: artifact["artifactType"]["schemaTitle"].removeprefix("system.")
            for output, artifact in component["outputDefinitions"]["artifacts"].items()
        }
        for name, component in tasks["components"].items()
    }
    always = {"metrics": "Metrics", "summary": "Markdown"}
    assert shown.pop("form") == {"summary": "Markdown"}
    assert shown["register"] == always | {"page": "HTML", "frontier": "HTML"}
    for name, outputs in shown.items():
        if name != "register":
            assert outputs == always | ({"job": "Artifact"} if name.startswith(("inject", "align")) else {}), name


def test_tasks_run_as_the_user_of_our_images(pods: dict[str, Any]) -> None:
    for name, pod in pods.items():
        context = pod["securityContext"]
        assert context == {"runAsUser": str(USER), "runAsGroup": str(USER), "runAsNonRoot": True}, name


def test_evaluation_takes_one_gpu_and_training_leaves_them_to_its_job(
    tasks: dict[str, Any], pods: dict[str, Any]
) -> None:
    components = tasks["components"]
    nodes = {"taskOutputParameter": {"outputParameterKey": "node_selector", "producerTask": "form"}}
    for name, executor in tasks["deploymentSpec"]["executors"].items():
        name = name.removeprefix("exec-")
        resources, pod = executor["container"].get("resources", {}), pods.get(name, {})
        passed = {one["field"]: one.get("applyToTask", False) for one in components[f"comp-{name}"].get(
            "taskConfigPassthroughs", ())}  # fmt: skip
        trains = name.startswith(("inject", "align", "baseline"))
        if name.startswith(("judge-eval", "locked-test")):
            assert resources["accelerator"]["resourceCount"] == "1" and resources["resourceMemoryLimit"] == "96Gi", name
            assert not pod or pod["nodeSelector"] == {"nodeSelectorJson": nodes}, name
        else:
            # Without these a launcher starts anywhere, however old Kubeflow is; its job has them from the run file.
            assert not resources and "nodeSelector" not in pod and "tolerations" not in pod, name
        assert bool(passed) == trains, name
        if trains:
            # What others set on a task goes to its job; the launcher itself sees the same volume and variables.
            assert not passed["RESOURCES"] and not passed["KUBERNETES_NODE_SELECTOR"], name
            assert passed["KUBERNETES_VOLUMES"] and passed["ENV"], name


def test_a_local_pipeline_says_nothing_of_kubernetes(tmp_path: Path) -> None:
    compile_pipeline(
        RunFile.model_validate({"run": {"name": "x"}, "documents": {"path": "docs"}}), tmp_path / "pipeline.yaml"
    )
    assert len(list(yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text()))) == 1


def resources(tmp_path: Path, name: str = "golden", namespace: str = "") -> str:
    run_file = RunFile.model_validate({"run": {"name": name}, "documents": {"path": "docs"}})
    return kubernetes_resources(run_file, GOLDEN.read_text(), namespace)


def test_as_resources_the_version_is_named_by_content_and_follows_its_pipeline(tmp_path: Path) -> None:
    text = resources(tmp_path)
    pipeline, version = yaml.safe_load_all(text)

    assert text == resources(tmp_path)
    assert [one["kind"] for one in (pipeline, version)] == ["Pipeline", "PipelineVersion"]
    assert pipeline["metadata"]["name"] == version["spec"]["pipelineName"] == "iar-golden"
    waves = [one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"] for one in (pipeline, version)]
    assert waves == ["0", "1"]
    assert [version["spec"][key] for key in ("pipelineSpec", "platformSpec")] == golden_documents()
    other = list(yaml.safe_load_all(kubernetes_resources(golden_run_file(), GOLDEN.read_text() + "\n# changed\n")))[1]
    names = [one["metadata"]["name"] for one in (version, other)]
    assert names[0] != names[1] and all(name.startswith("iar-golden-") for name in names)


def golden_run_file() -> RunFile:
    return RunFile.model_validate({"run": {"name": "golden"}, "documents": {"path": "docs"}})


def golden_documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(GOLDEN.read_text()))


def test_a_pipeline_without_platform_settings_has_no_platform_spec(tmp_path: Path) -> None:
    text = yaml.safe_dump(golden_documents()[0])
    _, version = yaml.safe_load_all(kubernetes_resources(golden_run_file(), text, "team-a"))
    assert "platformSpec" not in version["spec"]
    assert version["metadata"]["namespace"] == "team-a"


def test_the_resources_are_those_of_kfps_own_compiler(tmp_path: Path) -> None:
    from kfp.compiler import Compiler, KubernetesManifestOptions

    run_file = golden_run_file()
    ours = list(yaml.safe_load_all(kubernetes_resources(run_file, compiled_pipeline(run_file), "kubeflow")))
    name, version = (one["metadata"]["name"] for one in ours)
    options = KubernetesManifestOptions(name, name, version, version, "kubeflow", include_pipeline_manifest=True)
    path = tmp_path / "kfp.yaml"
    Compiler().compile(build(run_file), str(path), kubernetes_manifest_format=True, kubernetes_manifest_options=options)
    for made, theirs in zip(ours, yaml.safe_load_all(path.read_text()), strict=True):
        assert made["spec"] | {"description": ""} == theirs["spec"] | {"description": ""}
        assert (made["apiVersion"], made["kind"]) == (theirs["apiVersion"], theirs["kind"])


@needs_crds
@pytest.mark.parametrize("name", ["golden", "ends-in-a-dash-", "x" * 41])
def test_the_resources_fit_kubeflows_definitions(tmp_path: Path, name: str) -> None:
    for resource in yaml.safe_load_all(resources(tmp_path, name)):
        check(resource)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", resource["metadata"]["name"])


@needs_crds
@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_run_file_makes_resources_that_kubeflow_takes(path: Path) -> None:
    run_file = load_run_file(path, ["platform.backend=kubeflow"])
    text = kubernetes_resources(run_file, compiled_pipeline(run_file), "iar")
    pipeline, version = yaml.safe_load_all(text)
    check(pipeline)
    check(version)
    # etcd takes no object above 1.5 MiB, nor Argo CD one that kubectl cannot annotate with itself.
    assert len(text) < 256 * 1024


def test_qa_build_waits_for_the_model_only_where_it_counts_its_tokens() -> None:
    data = golden_settings().model_dump(mode="json")
    for tokens, given in ((None, {"run_file"}), (256, {"run_file", "base"})):
        settings = RunFile.model_validate(data | {"qa_build": {"chunk_tokens": tokens}})
        pipeline = next(yaml.safe_load_all(compiled_pipeline(settings)))
        assert set(pipeline["root"]["dag"]["tasks"]["qa-build"]["inputs"]["parameters"]) == given
