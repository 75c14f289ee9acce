"""Candidates in an object store: the pick's weights stay, the others come back from parents that the store has."""

import json
from pathlib import Path

import pytest

from iar.records import Candidate
from iar.services.candidates import weights_present
from iar.services.checkpoints import weights_digest
from iar.services.execution import Finished
from iar.services.store import Store, StoredRef
from iar.services.workspace import RELEASED, Workspace, released
from tests.services.candidate_world import PICK, World, quiet, records, weights
from tests.services.s3_server import PLACE, Request, S3Server, error

RUN = {"name": "t", "store": PLACE}
NO_GRID = {"slerp_t": [], "task_arithmetic_weight": [], "ties_density": [], "dare_drop": []}


@pytest.fixture
def world(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> World:
    return World(tmp_path, tiny_model_folder, monkeypatch)


def merged(done: dict[str, Finished]) -> StoredRef:
    return StoredRef.parse(done["merge-candidate-1"].handed_on)


def stored_weights(s3: S3Server, done: dict[str, Finished]) -> int:
    """Return how many weights files the store has of the candidates."""
    sizes = {file.sha256 for file in done["merge-candidate-1"].ref.open().files if file.path.endswith(".safetensors")}
    return len([name for name in s3.names() if merged(done).folder in name and name.rpartition("/")[2] in sizes])


def test_only_the_picks_weights_stay_in_the_store(world: World, s3: S3Server) -> None:
    done = world.run(run=RUN)
    assert stored_weights(s3, done) == 1
    (place,) = [name for name in s3.names() if name.endswith(RELEASED)]
    gone = json.loads(s3.client().get_object(Bucket="store", Key=place)["Body"].read())
    assert len(gone) == 11 and not [path for path in gone if path.startswith(PICK)]
    assert weights(done["merge-candidate-1"].ref.path) == {PICK}


def test_all_stay_where_the_run_file_says_so(world: World, s3: S3Server) -> None:
    done = world.run(run=RUN, recover={"keep": "all"})
    assert stored_weights(s3, done) == 12 and not [name for name in s3.names() if name.endswith(RELEASED)]


def test_another_machine_misses_nothing_and_brings_no_weights_but_the_picks(world: World, s3: S3Server) -> None:
    world.run(run=RUN)
    s3.counted()
    world.move("b")
    done = world.run(run=RUN)
    assert all(task.reused for task in done.values())
    assert set(s3.counted()) == {"GetObject", "ListObjects"}, "it only reads"
    artifact = done["merge-candidate-1"].ref.path
    assert weights(artifact) == {PICK} and len(released(artifact)) == 11
    assert all((artifact / name / "layers.jsonl").is_file() for name in records(artifact))
    assert not list(artifact.rglob("*.part"))


def brought(world: World, done: dict[str, Finished]) -> Path:
    """Bring the candidates alone to another machine."""
    world.move("c")
    return Store(PLACE, Workspace(world.state)).open(merged(done), quiet)


def present(world: World, artifact: Path, *names: str) -> list[Candidate]:
    wanted = [records(artifact)[name] for name in names]
    with weights_present(artifact, wanted, world.settings, world.state, quiet):
        assert all(weights_digest(artifact / one.id) == one.digest for one in wanted)
    return wanted


def test_a_machine_without_the_parents_rebuilds_from_those_in_the_store(world: World, s3: S3Server) -> None:
    artifact = brought(world, world.run(run=RUN))
    assert {path.name for path in (world.state / "artifacts").iterdir()} == {"merge-candidate-1"}
    present(world, artifact, "slerp-t0.2", "dare-p0.5")
    assert {path.name for path in (world.state / "artifacts").iterdir()} == {"merge-candidate-1", "base-model", "align"}


def test_bytes_that_the_pick_shares_with_another_candidate_stay(world: World, s3: S3Server) -> None:
    world.pick = "ties-d1"
    same = NO_GRID | {"task_arithmetic_weight": [1.0, 0.5], "ties_density": [1.0]}
    done = world.run(run=RUN, recover=same)
    assert stored_weights(s3, done) == 1
    artifact = brought(world, done)
    assert "ties-d1" in weights(artifact) and "task_arithmetic-w0.5" not in weights(artifact)
    present(world, artifact, "ties-d1", "task_arithmetic-w1")


def test_what_the_store_did_not_let_go_goes_with_the_next_run(
    world: World, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(request: Request) -> tuple[str, bytes] | None:
        return error("AccessDenied", "403 Forbidden") if request.kind == "DeleteObjects" else None

    s3.before = refuse
    done = world.run(run=RUN)
    assert "weights of candidates stay in the store: deleting s3://" in capsys.readouterr().err
    assert stored_weights(s3, done) == 12
    assert weights(brought(world, done)) == set(records(done["merge-candidate-1"].ref.path)), "what is there is brought"
    s3.before = lambda request: None
    world.move("state")
    world.run(run=RUN)
    assert stored_weights(s3, done) == 1
