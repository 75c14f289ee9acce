"""What a task shows in the UI, and the one line with which it ends."""

import json
import sys
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp import dsl
from kfp.dsl.executor import Executor

from iar.components.align import align
from iar.config import RunFile
from iar.errors import UserError
from iar.methods.job_spec import training_job
from iar.records import Lineage, Outcome
from iar.services.task_process import run_component
from iar.services.task_settings import show_manifest, task_settings


class Shown:
    """The outputs of a component, as kfp makes them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        for name in ("page", "frontier", "job"):
            setattr(self, name, SimpleNamespace(path=str(folder / name)))
        self.summary = dsl.Markdown(name="summary", uri=str(folder / "summary"), metadata={})
        self.folder = folder
        self.metrics = self
        self.logged: dict[str, float] = {}

    def log_metric(self, metric: str, value: float) -> None:
        self.logged[metric] = value

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setenv("IAR_STATE", str(tmp_path / "state"))
    for name in ("IAR_JOB_MANIFEST", "IAR_TASK_SETTINGS"):
        monkeypatch.setenv(name, "")
    tracker = SimpleNamespace(log_stage=lambda *_, **__: "run-1", uri="mlflow")
    tracking = SimpleNamespace(Tracker=lambda *given: tracker)
    monkeypatch.setitem(sys.modules, "iar.services.tracking", tracking)
    return Shown(tmp_path / "outputs")


def run(shown: Shown, stage: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "iar.stages.base_model", SimpleNamespace(run=stage))
    text = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "docs"}}).canonical()
    parts: dict[str, Any] = {name: getattr(shown, name) for name in ("page", "frontier", "job")}
    return run_component("base_model", text, {}, shown.metrics, shown.summary, **parts)


def reporting(run_file: RunFile, inputs: Any, out: Path, context: Any) -> Outcome:
    """A stage that leaves a report and a plot."""
    (out / "report.html").write_text('<p>report</p><p id="lineage"><a href="lineage.html">beside</a></p>')
    (out / "lineage.html").write_text('<main><ul class="tree"><li>theta_0</li></ul></main>')
    (out / "frontier.png").write_bytes(b"png")
    return Outcome({"points": 3.0, "nothing": float("nan")}, "**ok**", ())


def test_numbers_text_report_frontier_and_job_are_shown(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(shown, reporting, monkeypatch).startswith("file:///")
    assert shown.logged == {"points": 3.0}
    assert shown.text("summary") == "**ok**" and "href" not in shown.text("page")
    assert '<ul class="tree"><li>theta_0</li></ul>\n</details>' in shown.text("page")
    assert f'src="data:image/png;base64,{b64encode(b"png").decode()}"' in shown.text("frontier")
    assert shown.text("job").startswith("# No job was launched: ")


def test_the_artifact_s_metadata_is_one_text_that_leads_to_the_registry(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(run_file: RunFile, inputs: Any, out: Path, context: Any) -> Outcome:
        for name in ("report.html", "frontier.png"):
            (out / name).write_text("shown")
        return Outcome({}, "", (Lineage("checkpoint", "f" * 64, "theta_0", {}), Lineage("qa", "a" * 64, "q", {})))

    ref = run(shown, stage, monkeypatch)

    assert list(shown.summary.metadata) == ["iar"] and isinstance(shown.summary.metadata["iar"], str)
    about = json.loads(shown.summary.metadata["iar"])
    run_id = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "docs"}}).run_id
    lineage = ["checkpoint:" + "f" * 12]
    assert about == {"run": run_id, "task": "base-model", "artifact": ref, "lineage": lineage}


def test_an_error_is_one_line_and_its_exit_code(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(*given: Any) -> Outcome:
        raise UserError("documents.path: nothing there; correct it")

    with pytest.raises(SystemExit) as ended:
        run(shown, stage, monkeypatch)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "base-model: documents.path: nothing there; correct it\n"


def test_what_is_set_on_a_task_reaches_the_job_through_kubeflows_own_executor(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(run_file: RunFile, inputs: Any, out: Path, context: Any) -> Outcome:
        show_manifest(training_job("/state/work/align-0", ["python"], run_file.platform, task_settings()).manifest())
        return Outcome({}, "", ())

    base = run(shown, reporting, monkeypatch)
    monkeypatch.setitem(sys.modules, "iar.stages.align", SimpleNamespace(run=train))
    text = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "docs"}}).canonical()
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    given = {  # as the backend's driver writes it
        "affinity": affinity,
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "nodeSelector": {"pool": "b"},
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"nvidia.com/gpu": "4"}, "requests": {"cpu": "2"}},
    }
    folder, kinds = tmp_path / "kfp", {"metrics": "Metrics", "summary": "Markdown", "job": "Artifact"}
    artifacts = {
        name: {"artifacts": [{"name": name, "type": {"schemaTitle": f"system.{kind}"}, "uri": str(folder / name)}]}
        for name, kind in kinds.items()
    }
    outputs = {"outputFile": str(folder / "executor_output.json"), "artifacts": artifacts}
    outputs |= {"parameters": {"Output": {"outputFile": str(folder / "Output")}}}
    values = {"run_file": text, "data": base, "base": base, "name": "align", "task_config": given}
    Executor({"inputs": {"parameterValues": values}, "outputs": outputs}, align).execute()

    manifest = yaml.safe_load((folder / "job").read_text())
    pod = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {name: pod[name] for name in ("affinity", "tolerations", "nodeSelector")} == {
        name: given[name] for name in ("affinity", "tolerations", "nodeSelector")
    }
    assert given["env"][0] in container["env"]
    assert given["volumes"][0] in pod["volumes"] and given["volumeMounts"][0] in container["volumeMounts"]
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"] == "4" and container["resources"]["requests"]["cpu"] == "2"
    )
