"""Candidates that are kept as recipe and hash: released after a run, rebuilt bit for bit, through kills."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iar.cli import call
from iar.errors import PermanentError, UserError
from iar.records import Candidate
from iar.services import candidates as candidates_service
from iar.services.candidate_builds import build, run_candidates, table
from iar.services.candidates import release, weights_present
from iar.services.checkpoints import weights_digest
from iar.services.registry import Registry
from iar.services.workspace import RELEASED, Workspace, read_manifest, released, released_bytes
from tests.services.candidate_world import PICK, World, quiet, records, weights


@pytest.fixture
def world(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, tiny_model_folder, monkeypatch)


def test_only_the_picks_weights_stay_and_the_others_keep_record_and_facts(world: World) -> None:
    artifact = world.run()["merge-candidate-1"].ref.path
    assert weights(artifact) == {PICK}
    assert len(records(artifact)) == 12
    assert all((artifact / name / "layers.jsonl").is_file() for name in records(artifact))
    gone = [file for file in read_manifest(artifact).files if file.path.endswith(".safetensors")]
    assert released_bytes(world.state) == sum(file.size for file in gone) * 11 // 12


def test_a_second_run_reuses_every_stage_and_misses_nothing(world: World) -> None:
    world.run()
    again = world.run()
    assert all(task.reused for task in again.values())
    assert weights(again["merge-candidate-1"].ref.path) == {PICK}


def test_all_are_kept_where_the_run_file_says_so_and_it_is_the_same_run(world: World) -> None:
    first = world.settings.run_id
    artifact = world.run(recover={"keep": "all"})["merge-candidate-1"].ref.path
    assert world.settings.run_id == first
    assert len(weights(artifact)) == 12 and not (artifact / RELEASED).exists()


def test_no_pick_keeps_no_weights(world: World) -> None:
    world.pick = ""
    assert weights(world.run()["merge-candidate-1"].ref.path) == set()


def test_released_weights_come_back_bit_for_bit_where_a_stage_wants_them(world: World) -> None:
    artifact = world.run()["merge-candidate-1"].ref.path
    wanted = [records(artifact)[name] for name in ("slerp-t0.2", "dare-p0.5")]
    with weights_present(artifact, wanted, world.settings, world.state, quiet):
        assert weights(artifact) == {PICK, "slerp-t0.2", "dare-p0.5"}
        assert all(weights_digest(artifact / one.id) == one.digest for one in wanted)
        assert len(released(artifact)) == 9
    assert not list((world.state / "work").glob("rebuild-*"))
    world.run()
    assert weights(artifact) == {PICK}, "and go again with the next run"


def test_weights_in_use_are_not_released(world: World) -> None:
    artifact = world.run(recover={"keep": "all"})["merge-candidate-1"].ref.path
    with weights_present(artifact, list(records(artifact).values()), world.settings, world.state, quiet):
        world.run()
        assert len(weights(artifact)) == 12
    world.run()
    assert weights(artifact) == {PICK}


def test_what_the_registry_does_not_know_is_kept(world: World) -> None:
    done = world.run(recover={"keep": "all"})
    artifact = done["merge-candidate-1"].ref.path
    empty = Registry.open(f"sqlite:///{world.folder / 'other.sqlite'}")
    base, tuned = done["base-model"].ref.path, done["align"].ref.path
    assert release([artifact], PICK, [base, tuned], empty) == 0
    empty.close()
    known = Registry.open(f"sqlite:///{world.state / 'registry.sqlite'}")
    assert release([artifact], PICK, [world.folder / "gone", tuned], known) == 0
    known.close()
    assert len(weights(artifact)) == 12


def test_a_parent_that_is_gone_is_named(world: World) -> None:
    done = world.run()
    artifact = done["merge-candidate-1"].ref.path
    (done["align"].ref.path / "checkpoint" / "model.safetensors").unlink()
    with (
        pytest.raises(UserError, match=r"were released, and their parent 'tuned' is gone from .*; delete the folder"),
        weights_present(artifact, [records(artifact)["slerp-t0.2"]], world.settings, world.state, quiet),
    ):
        pass


def test_other_bits_than_the_recorded_are_refused_and_change_nothing(world: World) -> None:
    artifact = world.run()["merge-candidate-1"].ref.path
    one = records(artifact)["slerp-t0.2"]
    other = Candidate(**{**one.__dict__, "value": 0.9})
    with (
        pytest.raises(
            PermanentError, match=rf"slerp-t0\.2: rebuilt with weights .*; delete {artifact} and run the run"
        ),
        weights_present(artifact, [other], world.settings, world.state, quiet),
    ):
        pass
    assert weights(artifact) == {PICK} and len(released(artifact)) == 11


KILLED = """
import os, sys
from pathlib import Path
from iar.services import candidates
from iar.services.registry import Registry

artifact, base, tuned = map(Path, sys.argv[1:4])
url, after = sys.argv[4], int(sys.argv[5])
unlink, count = Path.unlink, 0

def counted(path, *arguments, **named):
    global count
    if path.suffix == ".safetensors":
        if count == after:
            os.kill(os.getpid(), 9)
        count += 1
    unlink(path, *arguments, **named)

Path.unlink = counted
candidates.release([artifact], "ties-d0.3", [base, tuned], Registry.open(url))
"""


@pytest.mark.parametrize("after", [0, 4])
def test_a_kill_while_weights_go_leaves_a_run_that_goes_on(world: World, after: int) -> None:
    done = world.run(recover={"keep": "all"})
    artifact, base, tuned = (done[name].ref.path for name in ("merge-candidate-1", "base-model", "align"))
    url = f"sqlite:///{world.state / 'registry.sqlite'}"
    arguments = [sys.executable, "-c", KILLED, str(artifact), str(base), str(tuned), url, str(after)]
    ended = subprocess.run(arguments, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL
    assert len(weights(artifact)) == 12 - after
    wanted = list(records(artifact).values())
    with weights_present(artifact, wanted, world.settings, world.state, quiet):
        assert all(weights_digest(artifact / one.id) == one.digest for one in wanted)
    again = world.run()
    assert all(task.reused for task in again.values())
    assert weights(artifact) == {PICK}


def test_a_kill_while_weights_come_back_leaves_them_released(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = world.run()["merge-candidate-1"].ref.path
    wanted = [records(artifact)["slerp-t0.2"], records(artifact)["slerp-t0.3"]]

    def killed(path: Path, value: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(candidates_service, "write_json", killed)
        with (
            pytest.raises(KeyboardInterrupt),
            weights_present(artifact, wanted, world.settings, world.state, quiet),
        ):
            pass
    assert len(released(artifact)) == 11
    with weights_present(artifact, wanted, world.settings, world.state, quiet):
        assert all(weights_digest(artifact / one.id) == one.digest for one in wanted)


def test_two_tasks_that_want_the_same_weights_wait_for_one_rebuild(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = world.run()["merge-candidate-1"].ref.path
    wanted, built = [records(artifact)["slerp-t0.2"]], []
    original = candidates_service.rebuild_candidates

    def counted(*arguments: Any) -> None:
        built.append(1)
        original(*arguments)

    monkeypatch.setattr(candidates_service, "rebuild_candidates", counted)
    errors: list[BaseException] = []

    def task() -> None:
        try:
            with weights_present(artifact, wanted, world.settings, world.state, quiet):
                assert weights_digest(artifact / wanted[0].id) == wanted[0].digest
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=task) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and built == [1]


def test_a_merge_by_document_sets_is_released_and_built_again(world: World) -> None:
    lists = {"slerp_t": [], "task_arithmetic_weight": [], "ties_density": [0.3], "dare_drop": []}
    recover, name = lists | {"set_weights": {"newer": [0.3, 0.7]}}, "set_weights-newer"
    run = {"name": "t", "on": f"first-0123456789@{'a' * 64}"}
    artifact = world.run(run=run, recover=recover)["merge-candidate-1"].ref.path
    assert weights(artifact) == {PICK} and set(records(artifact)) == {PICK, name}
    one = records(artifact)[name]
    with weights_present(artifact, [one], world.settings, world.state, quiet):
        assert weights_digest(artifact / name) == one.digest
    assert weights_digest(build(world.settings, name, None, quiet)) == one.digest
    registry = Registry.open(f"sqlite:///{world.state / 'registry.sqlite'}")
    roles = [{role for role, *_ in registry.inputs(records(artifact)[made].digest)} for made in (PICK, name)]
    registry.close()
    assert roles == [{"base", "tuned"}, {"base", "tuned", "earlier_1"}]


@pytest.fixture
def run_folder(world: World) -> Iterator[World]:
    world.run()
    yield world


def test_a_candidate_is_built_again_by_name(run_folder: World) -> None:
    folder = build(run_folder.settings, "dare-p0.3", None, quiet)
    recorded = {row["id"]: row for row in run_candidates(run_folder.settings)}["dare-p0.3"]
    assert folder == run_folder.state / "candidates" / run_folder.settings.run_id / "dare-p0.3"
    assert weights_digest(folder) == recorded["digest"]
    assert json.loads((folder / "checkpoint.json").read_text())["candidate"]["id"] == "dare-p0.3"
    assert build(run_folder.settings, "dare-p0.3", None, quiet) == folder
    other = run_folder.folder / "mine"
    assert weights_digest(build(run_folder.settings, "ties-d0.7", other, quiet)) != recorded["digest"]
    with pytest.raises(UserError, match=r"--output .*mine: exists already; name a new folder"):
        build(run_folder.settings, "ties-d0.7", other, quiet)


def test_the_list_tells_pick_kept_and_recipe(run_folder: World) -> None:
    rows = run_candidates(run_folder.settings)
    assert [row["id"] for row in rows if row["picked"]] == [row["id"] for row in rows if row["folder"]] == [PICK]
    lines = {line[0]: line for line in table(rows)}
    assert lines[PICK][4:] == ("kept", rows[6]["digest"][:12], "the pick")
    assert lines["slerp-t0.2"][4] == "recipe"


def test_an_unknown_name_and_a_run_that_has_made_none_are_refused(run_folder: World) -> None:
    with pytest.raises(UserError, match=r"no candidate 'ties-d9' in run .*; there are slerp-t0\.2, "):
        build(run_folder.settings, "ties-d9", None, quiet)
    other = run_folder.with_settings(run={"name": "other"})
    with pytest.raises(UserError, match="has not finished merge-candidate-1; run the run file first"):
        run_candidates(other)
    assert not Workspace.of(other).run(other.run_id).exists()


def test_the_command_lists_and_builds(run_folder: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_folder.folder / "run.yaml"
    path.write_text(f"run: {{name: t}}\ndocuments: {{path: {run_folder.folder}}}\n")
    assert call(["candidates", "list", str(path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["candidate", "changed"] and len(lines) == 12
    assert next(line for line in lines if line.startswith(PICK)).endswith("the pick")
    assert call(["candidates", "list", str(path), "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[PICK]["picked"] and not rows["dare-p0.1"]["folder"]
    assert call(["candidates", "build", str(path), "dare-p0.1", "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert weights_digest(Path(built["folder"])) == rows["dare-p0.1"]["digest"]
    assert call(["candidates", "build", str(path), "dare-p0.9"]) == 2
    assert "error: no candidate 'dare-p0.9' in run" in capsys.readouterr().err
