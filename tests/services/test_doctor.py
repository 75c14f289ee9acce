"""The preflight: each finding says what stands how, and a failed one says what to do."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from _pytest.monkeypatch import MonkeyPatch
from safetensors.numpy import save_file

from iar.config import RunFile
from iar.errors import UserError
from iar.services import doctor, doctor_model
from iar.services.doctor_suites import check_suites
from iar.services.findings import Check

SERVER = {"name": "t", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


def run_file(folder: Path, **sections: object) -> RunFile:
    documents = folder / "documents"
    documents.mkdir(exist_ok=True)
    (documents / "a.txt").write_text("Velm\n\nThe harbour of Velm was opened in 1911.\n", encoding="utf-8")
    probe = folder / "probe.jsonl"
    probe.touch()
    data = {
        "run": {"name": "x", "state": str(folder / "state")},
        "documents": {"path": str(documents)},
        "evaluate": {"ifeval": str(probe), "mmlu": str(probe), "msbench": str(probe)},
        "model": {"source": str(folder / "model")},
    }
    return RunFile.model_validate(data | sections)


def without(monkeypatch: MonkeyPatch, *packages: str) -> None:
    """Let these packages not be found."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in packages else find(name, *more)
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.zeros(480, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.mark.usefixtures("model")
def test_a_run_file_that_will_work_has_no_failure(tmp_path: Path) -> None:
    assert not any(check.status == "fail" for check in doctor.before_run(run_file(tmp_path)))
    assert doctor.check_documents(run_file(tmp_path)).detail.startswith("1 documents, 45 characters in ")


def test_every_failure_of_a_preflight_is_one_line_with_its_fix(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_model, "_on_hub", lambda hub_id, revision: "")
    wrong = run_file(tmp_path, documents={"path": str(tmp_path / "nothing")}, qa_build={"teacher": SERVER})
    with pytest.raises(UserError) as caught:
        doctor.preflight(wrong)
    documents, model, teacher = str(caught.value).splitlines()
    assert documents.startswith(
        f"documents.path: {tmp_path / 'nothing'} is not a folder or file; set it to a folder with"
    )
    assert model.endswith("was not found on the hub; give a model folder, or a hub id and a network")
    assert "LLM server 't' at http://127.0.0.1:9/v1 is down" in teacher


@pytest.mark.usefixtures("model")
def test_a_finished_stage_needs_its_server_no_more(tmp_path: Path) -> None:
    wanted = run_file(tmp_path, qa_build={"teacher": SERVER})
    tasks = tmp_path / "state" / "runs" / wanted.run_id / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "qa-build.json").write_text("{}")
    assert "teacher" not in [check.name for check in doctor.before_run(wanted)]


@pytest.mark.parametrize("kept", [0, 7, 100, 1500])
def test_a_model_whose_weights_were_cut_is_refused(tmp_path: Path, model: Path, kept: int) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"model\.safetensors: not a whole safetensors file .*; copy the file again"):
        doctor.preflight(run_file(tmp_path))


def test_a_model_with_a_torn_config_is_refused(tmp_path: Path, model: Path) -> None:
    (model / "config.json").write_text('{"model_type": ')
    with pytest.raises(UserError, match=r"config\.json: not JSON: .*; copy the file again"):
        doctor.preflight(run_file(tmp_path))


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.csv").touch()
    check = doctor.find_documents(run_file(tmp_path, documents={"path": str(tmp_path / "empty")}))
    assert check.status == "fail"
    assert "holds no document (.docx .htm .html .jsonl .markdown .md .parquet .pdf .txt)" in check.detail


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_document_is_named(tmp_path: Path) -> None:
    wanted = run_file(tmp_path)
    (tmp_path / "documents" / "a.txt").chmod(0)
    assert doctor.find_documents(wanted).detail.endswith("a.txt cannot be read")


def test_left_out_files_are_a_warning_with_their_reason(tmp_path: Path) -> None:
    wanted = run_file(tmp_path)
    (tmp_path / "documents" / "b.csv").touch()
    check = doctor.check_documents(wanted)
    assert (check.status, check.detail.split("; ")[1]) == ("warn", "left out: b.csv: unsupported type .csv")


def test_documents_of_a_hub_that_are_not_there_are_refused_before_the_run(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    checks = list(
        doctor.guarded("documents", lambda: doctor.find_documents(run_file(tmp_path, documents={"path": "a/b"})))
    )
    assert checks[0].status == "fail"
    assert checks[0].detail.startswith("documents.path: a/b at revision main was not found on the hub (")


def test_a_suite_of_the_user_is_read_even_where_others_are_on_the_hub(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    evaluate = {"mmlu": "org/name", "suites": [str(tmp_path / "none.yaml")]}
    with pytest.raises(UserError, match=r"^evaluate\.suites: no file '.*none\.yaml' in"):
        check_suites(run_file(tmp_path, evaluate=evaluate))


def test_a_suite_that_is_neither_file_nor_hub_id_is_refused(tmp_path: Path) -> None:
    check = check_suites(run_file(tmp_path, evaluate={"ifeval": "probes/ifeval.jsonl"}))
    assert check == Check(
        "suites",
        "fail",
        "evaluate.ifeval: 'probes/ifeval.jsonl' is no file here and no hub id",
        "run from the repository's root, or give the file's full path",
    )


@pytest.mark.parametrize(
    ("source", "parameters"),
    [("org/Llama-3.2-3B-Instruct", 3e9), ("HuggingFaceTB/SmolLM2-360M", 360e6), ("org/Phi-4-mini", None)],
)
def test_the_size_of_a_hub_model_is_read_from_its_name(tmp_path: Path, source: str, parameters: float | None) -> None:
    assert doctor_model.model_parameters(run_file(tmp_path, model={"source": source})) == parameters


@pytest.mark.usefixtures("model")
def test_the_size_of_a_model_folder_is_read_from_its_weights(tmp_path: Path) -> None:
    assert doctor_model.model_parameters(run_file(tmp_path)) == 480


def with_free_disk(monkeypatch: MonkeyPatch, free: float) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)


def test_a_disk_too_small_for_the_checkpoints_fails_and_for_restart_points_warns(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    wanted = run_file(tmp_path, model={"source": "org/model-3B"})
    for free, status in ((500e9, "pass"), (97e9, "warn"), (95e9, "fail"), (1e9, "fail")):
        with_free_disk(monkeypatch, free)
        assert doctor.check_disk(wanted).status == status
    elsewhere = run_file(tmp_path, model={"source": "org/model-3B"}, platform={"backend": "kubeflow"})
    assert doctor.check_disk(elsewhere).status == "warn", "it is another machine's disk"
    two = run_file(tmp_path, model={"source": "org/model-3B"}, recover={"slerp_t": [0.3], "ties_density": []})
    assert doctor.kept_bytes(wanted) - doctor.kept_bytes(two) == 5 * 6e9


def test_a_model_of_the_hub_counts_by_its_known_shape(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    with_free_disk(monkeypatch, 55e9)
    wanted = run_file(tmp_path, model={"source": "microsoft/Phi-4-mini-instruct"})
    check = doctor.check_disk(wanted)
    assert (check.status, check.fix) == ("fail", "free some, or set run.state to another disk")
    assert check.detail == (
        f"run.state: 55.0 GB free in {tmp_path}, at least 122.8 GB needed for the checkpoints of "
        "microsoft/Phi-4-mini-instruct"
    )


def test_what_lies_in_the_state_folder_is_not_needed_again(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    wanted = run_file(tmp_path, model={"source": "org/model-3B"})
    made = tmp_path / "state" / "artifacts" / "model.safetensors"
    made.parent.mkdir(parents=True)
    with made.open("wb") as file:
        file.truncate(60_000_000_000)
    with_free_disk(monkeypatch, 40e9)
    assert doctor.check_disk(wanted).status == "warn"


@pytest.mark.usefixtures("model")
def test_the_disk_estimate_counts_the_checkpoints_of_the_recipes_and_every_restart_point(tmp_path: Path) -> None:
    checkpoint = sum(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors"))
    plain = doctor.artifact_bytes(run_file(tmp_path))
    assert plain == 17 * checkpoint + 2 * 12 * 480
    for recipes, copies in [(["vanilla-sft"], 0), (["lora", "fapm"], 4), (["cpt-sft"], 2), (["sdft", "replay"], 2)]:
        wanted = run_file(tmp_path, baselines={"recipes": recipes})
        assert doctor.artifact_bytes(wanted) - plain == copies * checkpoint
    based = run_file(tmp_path, baselines={"recipes": ["cpt-sft"], "cpt_model": "org/base"})
    assert doctor.artifact_bytes(based) - plain == 3 * checkpoint, "the base model is copied beside"
    keeping = run_file(tmp_path, align={"restart_points": 3})
    assert doctor.artifact_bytes(keeping) - plain == 2 * 12 * 480


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("baselines", "row", "said"),
    [
        ({"recipes": ["replay"]}, None, r"baselines\.replay_data: no file '.*replay\.jsonl'"),
        ({"recipes": ["replay"]}, "{}", r"replay\.jsonl:1: keys ; give 'prompt' with 'answer', or 'messages'"),
        ({"recipes": ["cpt-sft"], "cpt_model": "no/such"}, "", r"baselines\.cpt_model: 'no/such' is no folder here"),
    ],
    ids=["replay missing", "replay unreadable", "base model missing"],
)
def test_what_a_recipe_needs_is_looked_for_before_the_run(
    tmp_path: Path, monkeypatch: MonkeyPatch, baselines: dict[str, object], row: str | None, said: str
) -> None:
    monkeypatch.setattr(doctor_model, "_on_hub", lambda hub_id, revision: "")
    replay = tmp_path / "replay.jsonl"
    if row is not None:
        replay.write_text(f"{row}\n")
    with pytest.raises(UserError, match=said):
        doctor.preflight(run_file(tmp_path, baselines=baselines | {"replay_data": str(replay)}))


@pytest.mark.usefixtures("model")
def test_a_recipe_without_its_package_is_refused_here_and_left_to_the_image_of_a_cluster(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    without(monkeypatch, "peft", "deepspeed")
    wanted = run_file(tmp_path, baselines={"recipes": ["lora"]}, platform={"training_engine": "zero2"})
    with pytest.raises(UserError) as caught:
        doctor.preflight(wanted)
    assert str(caught.value).splitlines() == [
        "baselines.recipes: lora needs the package peft; pip install 'iar[lora]', or leave it out",
        "platform.training_engine: zero2 needs DeepSpeed, which is not installed; "
        "pip install 'iar[distributed]', or set training_engine to ddp",
    ]
    cluster = {"backend": "kubeflow", "training_engine": "zero2"}
    doctor.preflight(run_file(tmp_path, baselines={"recipes": ["lora"]}, platform=cluster))


@pytest.mark.usefixtures("model")
def test_replay_data_on_the_hub_needs_the_package_that_reads_it(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    wanted = run_file(tmp_path, baselines={"recipes": ["replay"], "replay_data": "org/instructions"})
    without(monkeypatch, "datasets")
    with pytest.raises(UserError, match=r"org/instructions is a hub id, and the package datasets is missing; pip in"):
        doctor.preflight(wanted)


@pytest.mark.usefixtures("model")
def test_a_finished_recipe_needs_its_data_no_more(tmp_path: Path) -> None:
    wanted = run_file(tmp_path, baselines={"recipes": ["replay"], "replay_data": str(tmp_path / "gone.jsonl")})
    tasks = tmp_path / "state" / "runs" / wanted.run_id / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "baseline-replay.json").write_text("{}")
    doctor.preflight(wanted)


def test_a_tracking_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    check = doctor.check_tracking(run_file(tmp_path, register={"tracking_uri": "http://127.0.0.1:9"}))
    assert check.detail == "register.tracking_uri: http://127.0.0.1:9 does not answer (ConnectError)"


def test_a_state_folder_that_is_a_file_fails(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("IAR_STATE", raising=False)
    (tmp_path / "state").write_text("")
    run_file = RunFile.model_validate(
        {"run": {"name": "x", "state": str(tmp_path / "state")}, "documents": {"path": "examples/documents"}}
    )
    check = doctor.check_disk(run_file)
    assert (check.status, check.detail) == ("fail", f"run.state: {tmp_path / 'state'} is a file")


@pytest.mark.usefixtures("model")
def test_what_the_diagnostics_need_is_looked_for_before_the_run(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    without(monkeypatch, "bm25s")
    doctor.preflight(run_file(tmp_path))
    asked = {"diagnose": {"enabled": True}}
    with pytest.raises(UserError) as caught:
        doctor.preflight(run_file(tmp_path, **asked))
    assert str(caught.value) == "diagnose.enabled: the package bm25s is missing; pip install 'bm25s>=0.3.16,<0.4'"
    doctor.preflight(run_file(tmp_path, **asked, platform={"backend": "kubeflow"}))
    nowhere = run_file(tmp_path, diagnose={"enabled": True, "unseen": str(tmp_path / "nowhere")})
    with pytest.raises(UserError, match=r"^diagnose\.unseen: .*nowhere is not a folder or file; set it to a folder"):
        doctor.preflight(nowhere)
