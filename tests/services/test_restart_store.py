"""Restart points in an S3 server: uploaded while the training goes on, taken up by a machine that has none."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from iar.config import PlatformSection, TrainingSection
from iar.errors import UserError
from iar.services.distributed import World
from iar.services.restart import RestartPoints
from iar.services.restart_store import PointStore
from iar.services.trainer import train
from tests.services.s3_server import BUCKET, PLACE, Request, S3Server, error
from tests.training_rows import ROWS

ROOT = Path(__file__).parents[2]
NODE = "manifest-0-of-1.json"
HERE = f"{PLACE}/trainings/inject-0123"
SETTINGS = TrainingSection(epochs=2, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e-9)


def ignore(step: int, steps: int, note: str) -> None:
    """No progress wanted."""


def points(folder: Path, keep: int = 2) -> RestartPoints:
    folder.mkdir(exist_ok=True)
    (folder / "steps.jsonl").touch()
    store = PointStore(f"{HERE}/restart", keep, folder / "restart", folder / "steps.jsonl")
    return RestartPoints(folder / "restart", keep, {"seed": 5}, World(), store)


def save(to: RestartPoints, step: int) -> None:
    with (to.folder.parent / "steps.jsonl").open("a") as log:
        log.write(json.dumps({"step": step}) + "\n")
    to.save(step, lambda: {"master/a": torch.full((30, 2), float(step))})


def steps_in(server: S3Server) -> list[str]:
    names = [name for name in server.names() if NODE in name]
    return [name.split("/")[-2].removeprefix("step-0000000") for name in names]


def value(taken: RestartPoints) -> float:
    point = taken.newest()
    assert point is not None
    return float(point.tensor("master/a")[0, 0])


def test_the_newest_point_and_its_log_come_to_a_machine_that_has_none(s3: S3Server, tmp_path: Path) -> None:
    first = points(tmp_path / "a")
    for step in (1, 2, 3):
        save(first, step)
        first.wait()
    assert steps_in(s3) == ["2", "3"], "as many as are kept"
    second = points(tmp_path / "b")
    assert value(second) == 3.0
    assert (tmp_path / "b" / "steps.jsonl").read_text() == (tmp_path / "a" / "steps.jsonl").read_text()
    save(second, 4)
    second.wait()
    assert steps_in(s3) == ["3", "4"]
    second.clear()
    assert s3.names() == [] and not list((tmp_path / "b").glob("restart*"))


def test_a_newer_point_here_goes_before_that_of_the_store_and_is_brought_there(s3: S3Server, tmp_path: Path) -> None:
    cut = points(tmp_path / "a")
    save(cut, 1)
    cut.wait()
    s3.before = lambda request: error("AccessDenied", "403 Forbidden") if request.method == "PUT" else None
    save(cut, 2)
    cut.wait()
    cut.close()
    s3.before = lambda request: None
    assert steps_in(s3) == ["1"]
    again = points(tmp_path / "a")
    assert value(again) == 2.0
    again.wait()
    assert steps_in(s3) == ["1", "2"]


def test_training_waits_for_no_upload_and_only_the_newest_point_waits(s3: S3Server, tmp_path: Path) -> None:
    held, reached = threading.Event(), threading.Event()

    def before(request: Request) -> None:
        if request.method == "PUT":
            reached.set()
            held.wait(30)

    s3.before = before
    slow = points(tmp_path / "a", keep=9)
    save(slow, 1)
    assert reached.wait(30)
    for step in (2, 3, 4, 5):
        save(slow, step)  # returns, though the server does not
    assert len(list((tmp_path / "a" / "restart-upload").iterdir())) == 2, "one on its way, one waits"
    held.set()
    slow.wait()
    assert steps_in(s3) == ["1", "5"]


def test_a_store_that_fails_stops_no_training_and_is_said(
    s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.before = lambda request: error("AccessDenied", "403 Forbidden") if request.method == "PUT" else None
    going = points(tmp_path / "a")
    save(going, 1)
    going.wait()
    said = capsys.readouterr().err
    assert "made up (AccessDenied)" in said and "the training goes on, and its next restart point" in said
    assert value(going) == 1.0


def test_a_point_whose_bytes_were_changed_is_passed_over_for_the_one_before(
    s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = points(tmp_path / "a")
    for step in (1, 2):
        save(first, step)
        first.wait()
    for name in s3.names("team/iar/trainings/inject-0123/restart/step-00000002/"):
        if NODE not in name:
            size = s3.client().head_object(Bucket=BUCKET, Key=name)["ContentLength"]
            s3.client().put_object(Bucket=BUCKET, Key=name, Body=b"?" * size)
    assert value(points(tmp_path / "b")) == 1.0
    assert (
        "restart point passed over: s3://store/team/iar/trainings/inject-0123/restart/step-00000002/"
        in capsys.readouterr().err
    )


def test_half_an_upload_is_never_taken_up(s3: S3Server, tmp_path: Path) -> None:
    first = points(tmp_path / "a")
    save(first, 1)
    first.wait()
    s3.before = lambda request: (
        error("AccessDenied", "403 Forbidden") if request.path.endswith(f"step-00000002/{NODE}") else None
    )
    save(first, 2)
    first.wait()
    s3.before = lambda request: None
    assert any("step-00000002" in name for name in s3.names())
    assert value(points(tmp_path / "b")) == 1.0


# --- whole trainings

PROCESS = """
import json, os, signal, sys
from pathlib import Path
from iar.config import PlatformSection, TrainingSection
from iar.errors import IarError
from iar.services.trainer import train
from tests.training_rows import ROWS

job = json.loads(sys.argv[1])

def on_step(step, steps, note):
    if step == job["step"]:
        os.kill(os.getpid(), signal.SIGTERM)

settings = TrainingSection.model_validate(job["settings"])
platform = PlatformSection(processes=job["processes"])
try:
    train(Path(job["model"]), ROWS, settings, 5, Path(job["out"]), on_step, platform, store=job["store"])
except IarError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def train_until_sigterm(model: Path, out: Path, settings: TrainingSection, step: int, processes: int = 1) -> int:
    job: dict[str, Any] = {"model": str(model), "out": str(out), "settings": settings.model_dump(), "store": HERE}
    job |= {"step": step, "processes": processes}
    return subprocess.run([sys.executable, "-c", PROCESS, json.dumps(job)], cwd=ROOT).returncode


def test_a_training_told_to_end_goes_on_on_another_machine_with_the_same_bits(
    s3: S3Server, tiny_model_folder: Path, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"checkpoint_seconds": 1e9})  # the only point is that of the end
    whole = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore)
    assert train_until_sigterm(tiny_model_folder, tmp_path / "a", settings, step=3) == 4
    shutil.rmtree(tmp_path / "a")  # the pod's own disk
    seen: list[int] = []
    resumed = train(
        tiny_model_folder, ROWS, settings, 5, tmp_path / "b", lambda step, steps, note: seen.append(step), store=HERE
    )
    assert seen == [4, 5, 6]
    assert (resumed.digest, resumed.steps, resumed.tokens) == (whole.digest, whole.steps, whole.tokens)
    logged = [json.loads(line)["step"] for line in (tmp_path / "b" / "steps.jsonl").read_text().splitlines()]
    assert logged == [1, 2, 3, 4, 5, 6]
    assert s3.names() == [] and not list((tmp_path / "b").glob("restart*"))


def test_a_training_that_fails_ends_without_waiting_for_its_upload(
    s3: S3Server, tiny_model_folder: Path, tmp_path: Path
) -> None:
    def on_step(step: int, steps: int, note: str) -> None:
        if step == 3:
            raise UserError("made up")

    before = set(threading.enumerate())
    with pytest.raises(UserError, match="made up"):
        train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "a", on_step, store=HERE)
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in left if "restart-points" in name or "ThreadPool" in name]
    assert not (tmp_path / "a" / "restart-upload").exists()


@pytest.mark.slow
def test_two_ranks_upload_one_point_and_one_rank_takes_it_up(
    s3: S3Server, tiny_model_folder: Path, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 12, "compute_dtype": "float32"})
    platform = PlatformSection(processes=2)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, settings, 5, tmp_path / "a", interrupt_once(s3), platform, store=HERE)
    first = next(name for name in s3.names() if NODE in name)
    told = json.loads(s3.client().get_object(Bucket=BUCKET, Key=first)["Body"].read())
    names = {file["path"] for file in told["files"]}
    assert {"state-0-of-2.safetensors", "state-1-of-2.safetensors", "point.json", "steps.jsonl"} <= names
    shutil.rmtree(tmp_path / "a")
    seen: list[int] = []
    done = train(
        tiny_model_folder, ROWS, settings, 5, tmp_path / "b", lambda step, steps, note: seen.append(step), store=HERE
    )
    assert seen[0] > 1 and done.steps == 36


def interrupt_once(server: S3Server) -> Any:
    def on_step(step: int, steps: int, note: str) -> None:
        if steps_in(server):
            raise KeyboardInterrupt

    return on_step
