"""Artifacts: published whole or not at all, found again, refused when changed."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.errors import PermanentError, UserError
from iar.records import Lineage, Outcome
from iar.services.workspace import STEPS, Manifest, Ref, Workspace, stored_files

KEY = "ab" * 32


def publish(workspace: Workspace, text: str = "hello", started: float = 1.0, log: str = "") -> Ref:
    work = workspace.work("inject", KEY)
    (work / "checkpoint").mkdir(parents=True)
    (work / "checkpoint" / "model.bin").write_text(text)
    if log:
        (work / STEPS).write_text(log)
    outcome = Outcome({"loss": 0.5}, "**ok**", (Lineage("dataset", "d", "rows", {"n": 1}, (("data", "x"),)),))
    manifest = Manifest("inject", "inject", KEY, {"stage": "inject"}, "c", started, 2.0, stored_files(work), outcome)
    workspace.publish(manifest)
    return workspace.ref("inject", KEY)


def test_a_published_artifact_is_found_with_all_it_reported(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.find("inject", KEY) is None
    ref = publish(workspace)
    manifest = workspace.find("inject", KEY, verify=True)
    assert manifest is not None and manifest == ref.open(verify=True)
    assert manifest.outcome.lineage[0].inputs == (("data", "x"),)
    assert [file.path for file in manifest.files] == ["checkpoint/model.bin"]
    assert not workspace.work("inject", KEY).exists()


def test_content_does_not_depend_on_when_it_was_made(tmp_path: Path) -> None:
    first = publish(Workspace(tmp_path / "a"), started=1.0).open()
    second = publish(Workspace(tmp_path / "b"), started=2.0).open()
    assert first.content == second.content
    timings = [publish(Workspace(tmp_path / name), log=f'{{"seconds": {name}}}').open() for name in ("1", "2")]
    assert timings[0].content == timings[1].content
    assert publish(Workspace(tmp_path / "c"), text="other").open().content != first.content


def test_an_artifact_without_a_manifest_or_of_another_size_is_not_found(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    ref = publish(workspace)
    (ref.path / "checkpoint" / "model.bin").write_text("longer than before")
    assert workspace.find("inject", KEY) is None
    assert publish(workspace).open(verify=True)  # made again in its place
    (ref.path / "manifest.json").unlink()
    assert workspace.find("inject", KEY) is None


def test_changed_bytes_of_equal_size_are_found_on_demand(tmp_path: Path) -> None:
    ref = publish(Workspace(tmp_path))
    (ref.path / "checkpoint" / "model.bin").write_text("hellO")
    ref.open()
    with pytest.raises(PermanentError, match=r"checkpoint/model\.bin was changed; delete the folder to rebuild it"):
        ref.open(verify=True)


def test_a_changed_manifest_and_a_lost_artifact_are_refused(tmp_path: Path) -> None:
    ref = publish(Workspace(tmp_path))
    with pytest.raises(PermanentError, match="its manifest was changed"):
        dataclasses.replace(ref, digest="0" * 64).open()
    with pytest.raises(UserError, match="is gone: run the same run file again"):
        dataclasses.replace(ref, path=tmp_path / "nowhere").open()


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
def test_a_reference_survives_its_text(name: str) -> None:
    ref = Ref(Path("/state") / name, "0" * 64)
    assert Ref.parse(str(ref)) == ref


@pytest.mark.parametrize("text", ["", "/state/a", "file:///a@sha256:12", "http://a@sha256:" + "0" * 64])
def test_any_other_text_is_no_reference(text: str) -> None:
    with pytest.raises(UserError, match="expected file:///folder@sha256:<64 digits>"):
        Ref.parse(text)
