"""The run that another is built on: how it is named, laid out and refused, in a state folder made by hand."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from iar.cli_options import built_on
from iar.config import RunFile
from iar.errors import UserError
from iar.records import Document, EarlierSet, Lineage, Outcome, QAPair, read_records, write_json, write_records
from iar.services.checkpoints import recorded_digest
from iar.services.doctor_earlier import check_earlier
from iar.services.earlier_runs import named_run
from iar.services.earlier_sets import EarlierSets
from iar.services.registry import Producer, Registry
from iar.services.retraction import retract
from iar.services.run_files import load_run_file
from iar.services.workspace import Context, Manifest, Workspace, stored_files
from iar.stages import earlier_run
from tests.tiny_model import make_tiny_model

RUN = "first-0123456789"
DATASET, DOCUMENT = "d" * 64, "e" * 64
PRODUCER = Producer(RUN, "align", "0" * 64, "0" * 64, 17, 0.0, 1.0)


def run_file(state: Path, **sections: Any) -> RunFile:
    data: dict[str, Any] = {"run": {"name": "second", "state": str(state)}, "documents": {"path": "."}}
    return RunFile.model_validate(data | sections | {"run": data["run"] | sections.get("run", {})})


def publish(workspace: Workspace, run_id: str, task: str, fill: Path | None = None) -> Path:
    """Make an artifact of a task with the files of a folder, and the marker that the run has finished it."""
    key = (task + run_id).encode().hex()[:64].ljust(64, "0")
    work = workspace.work(task, key)
    shutil.copytree(fill, work) if fill else work.mkdir(parents=True)
    parts = {"settings": {"model.system_turn": None}}
    files = stored_files(work)
    workspace.publish(Manifest(task, task.replace("-", "_"), key, parts, "0", 0.0, 1.0, files, Outcome({}, "")))
    marker = workspace.run(run_id) / "tasks" / f"{task}.json"
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_json(marker, {"ref": str(workspace.ref(task, key))})
    return workspace.artifact(task, key)


def write_data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        question = f"Who built mill {split}?"
        write_records(
            folder / f"{split}.jsonl",
            [QAPair(split, "d", "c", split, "fact", question, "Tora Lind", "", (), "Tora", "offline")],
        )
    write_records(folder / "documents.jsonl", [Document("d", "Mill", "A mill.", "d.md", "text/markdown", DOCUMENT)])
    write_json(folder / "decontamination.json", [])
    write_json(folder / "dataset.json", {"digest": DATASET})
    return folder


@pytest.fixture
def state(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """A state folder with one finished run, in its registry too."""
    workspace = Workspace(tmp_path / "state")
    make_tiny_model(tmp_path / "tuned" / "checkpoint", 1)
    publish(workspace, RUN, "base-model", tiny_model_folder)
    publish(workspace, RUN, "qa-build", write_data(tmp_path / "data"))
    publish(workspace, RUN, "align", tmp_path / "tuned")
    publish(workspace, RUN, "register")
    tuned = recorded_digest(tmp_path / "tuned" / "checkpoint")
    registry = Registry.open(workspace.registry_url(run_file(workspace.state)))
    made = (("trained-on", DATASET),)
    entries = [Lineage("dataset", DATASET, "qa", {}), Lineage("checkpoint", tuned, "theta_IA", {}, made)]
    registry.record(entries, PRODUCER)
    registry.close()
    return workspace.state


def on(state: Path, **sections: Any) -> RunFile:
    """A run file on the finished run."""
    return run_file(state, **sections, run={"on": named_run(RUN, run_file(state))})


def lay_out(settings: RunFile, state: Path, base: Path, out: Path) -> Outcome:
    out.mkdir()
    return earlier_run.run(settings, {"base": base}, out, Context.for_tests(state))


def test_a_run_is_named_by_its_id_a_beginning_or_its_folder(state: Path) -> None:
    names = {named_run(place, run_file(state)) for place in (RUN, "first", str(state / "runs" / RUN))}
    (name,) = names
    assert name.startswith(f"{RUN}@") and len(name) == len(RUN) + 65
    assert check_earlier(on(state)).status == "pass"


def test_what_only_a_run_on_another_may_ask_for_is_in_the_file_that_the_option_is_given_with(
    state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "second.yaml"
    asks = "recover: {set_weights: {newer: [0.3, 0.7]}}\nselect: {floors: {retention: 40}}\n"
    path.write_text(f"run: {{name: second, state: {state}}}\ndocuments: {{path: .}}\n{asks}")
    overrides = built_on(path, ["run.seed=3"], RUN, None)
    assert overrides == ["run.seed=3", f"run.on={named_run(RUN, run_file(state))}"]
    assert load_run_file(path, overrides).select.floors == {"retention": 40}


def test_its_checkpoint_and_data_get_second_names(state: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    settings = on(state)
    outcome = lay_out(settings, state, tiny_model_folder, tmp_path / "out")
    sets = EarlierSets(tmp_path / "out")
    digest = settings.run.on.partition("@")[2]
    assert list(sets) == [EarlierSet(RUN, digest, DATASET, 1)] and outcome.metrics == {"sets": 1.0, "questions": 1.0}
    assert recorded_digest(sets.checkpoints[0]) == digest
    # What it was checked against is no part of it: the same data checked again is the same start.
    assert {path.name for path in sets.data[0].iterdir()} == {
        "train.jsonl", "validation.jsonl", "test.jsonl", "documents.jsonl", "dataset.json"
    }  # fmt: skip


def test_of_a_run_that_was_built_on_one_all_sets_are_laid_out(
    state: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    lay_out(on(state), state, tiny_model_folder, tmp_path / "before")
    publish(Workspace(state), RUN, "earlier-run", tmp_path / "before")
    lay_out(on(state), state, tiny_model_folder, tmp_path / "out")
    assert len(list(read_records(tmp_path / "out" / "sets.jsonl", EarlierSet))) == 2
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["1", "2", "sets.jsonl"]


def refusal(place: str, settings: RunFile) -> str:
    with pytest.raises(UserError) as error:
        named_run(place, settings)
    return str(error.value)


def test_what_is_no_finished_run_is_refused_with_those_that_are_there(state: Path, tmp_path: Path) -> None:
    said = refusal("other", run_file(state))
    assert said == f"--on other: no run file and no run in {state}; runs there: {RUN}"
    publish(Workspace(state), "first-9999999999", "base-model")
    assert refusal("first", run_file(state)).startswith(f"--on first: fits {RUN}, first-9999999999; runs there: ")
    assert refusal("first-9", run_file(state)) == (
        "--on: run first-9999999999 is not finished, it lacks register; run its run file to the end first"
    )
    place = str(state / "runs" / RUN)
    assert refusal(place, run_file(tmp_path / "elsewhere")).startswith(
        f"--on {place}: is a run of another state folder than {tmp_path / 'elsewhere'}; give both runs one run.state"
    )
    assert "no such run file" in refusal("other.yaml", run_file(state))


def test_an_artifact_that_is_gone_is_named(state: Path) -> None:
    shutil.rmtree(next((state / "artifacts" / "align").iterdir()))
    said = refusal(RUN, run_file(state))
    assert said.startswith(f"--on: run {RUN}: artifact ") and "is gone: run the same run file again" in said


def test_other_weights_another_theta_0_and_another_system_turn_are_refused(
    state: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    changed = run_file(state, run={"on": f"{RUN}@{'0' * 64}"})
    with pytest.raises(UserError, match=rf"theta_IA of run {RUN} is \w{{12}} now, not 0{{12}}: it was trained again"):
        check_earlier(changed)
    with pytest.raises(UserError, match=rf"run {RUN} began with a theta_0 of weights \w{{12}}, this one has \w{{12}}"):
        lay_out(on(state), state, make_tiny_model(tmp_path / "other", 5), tmp_path / "out")
    with pytest.raises(UserError, match=r"was trained with model.system_turn None, this one has 'Be brief.'"):
        lay_out(on(state, model={"system_turn": "Be brief."}), state, tiny_model_folder, tmp_path / "out2")
    assert not list((tmp_path / "out").iterdir()) and not list((tmp_path / "out2").iterdir())


def test_weights_for_more_sets_than_there_are_is_refused_before_anything_is_computed(state: Path) -> None:
    assert check_earlier(on(state, recover={"set_weights": {"newer": [0.3, 0.7]}})).status == "pass"
    three = on(state, recover={"set_weights": {"newer": [0.3, 0.7, 0.5]}})
    with pytest.raises(UserError, match=r"recover\.set_weights: newer has 3 weights, and with the run .* there are 2"):
        check_earlier(three)


def test_what_the_registry_does_not_know_or_is_retracted_is_refused(state: Path, tmp_path: Path) -> None:
    elsewhere = on(state, register={"registry_url": f"sqlite:///{tmp_path / 'other.sqlite'}"})
    with pytest.raises(UserError, match=r"is not in this run's registry, which is empty; set register\.registry_url"):
        check_earlier(elsewhere)
    registry = Registry.open(Workspace(state).registry_url(on(state)))
    retract(registry, DATASET, "licence ended")
    registry.close()
    with pytest.raises(UserError, match=r"was made from .* which is retracted \(licence ended\); run that run file"):
        check_earlier(on(state))
