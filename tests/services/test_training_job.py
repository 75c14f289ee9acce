"""A training on a cluster: the trainer makes a job, whose own command trains, and takes its result or its error."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from iar.config import PlatformSection, PoolSection, TrainingSection
from iar.errors import UserError
from iar.records import write_json
from iar.services import jobs, training_job
from iar.services.task_settings import hand_on
from iar.services.trainer import train
from tests.ports import free_port
from tests.services.kube import World, emulator
from tests.training_rows import ROWS

SETTINGS = TrainingSection(epochs=1, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e9)
PLATFORM = PlatformSection(backend="kubeflow", pool=PoolSection(gpu=""))


class Operator(jobs.Cluster):
    """A cluster whose operator carries out a job as soon as the launcher looks at it."""

    world: World
    made: list[dict[str, Any]]
    rank_error = ""

    def await_change(self, job: dict[str, Any]) -> None:
        if len(self.made) == 1:
            return
        self.made.append(job)
        (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
        self._carry_out(container["command"], Path(container["command"][-1]))

    def _carry_out(self, command: list[str], folder: Path) -> None:
        if self.rank_error:
            write_json(folder / "error-0.json", {"rank": 0, "kind": "UserError", "message": self.rank_error})
            self._becomes("Failed")
            return
        place = {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
        environment = os.environ | place | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run([sys.executable, *command[1:]], env=environment, timeout=600, check=False)
        self._becomes("Failed" if done.returncode else "Succeeded")

    def _becomes(self, state: str) -> None:
        (key,) = (key for key in self.world.api.objects if key[2] == self.made[0]["metadata"]["name"])
        conditions = [{"type": state, "status": "True", "reason": state, "message": "m"}]
        self.world.api.objects[key].patch({"status": {"conditions": conditions}})


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Operator]]:
    with emulator() as api:
        world = World(api)

        def here(kind: Any) -> Operator:
            like = world.cluster()
            cluster = Operator(like.custom.api_client, like.namespace, kind, like.pace)
            cluster.world, cluster.made = world, []
            return cluster

        monkeypatch.setattr(jobs.Cluster, "here", here)
        world.logs(b"")
        hand_on({})
        yield Operator


def test_the_job_of_a_training_trains(tiny_model_folder: Path, tmp_path: Path, operator: type[Operator]) -> None:
    told: list[int] = []
    out = tmp_path / "work"
    result = train(tiny_model_folder, ROWS, SETTINGS, 5, out, lambda step, *_: told.append(step), PLATFORM)
    assert told == list(range(1, result.steps + 1))
    assert (tmp_path / "work" / "checkpoint" / "model.safetensors").is_file()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the job: the order of sums depends on it
    here = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "here", lambda *_: None)
    torch.set_num_threads(threads)
    assert result.digest == here.digest


def test_what_a_rank_says_of_its_end_is_raised(
    tiny_model_folder: Path, tmp_path: Path, operator: type[Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "rank_error", "training: no room")
    with pytest.raises(UserError, match=r"^training: no room"):
        train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "work", lambda *_: None, PLATFORM)
    assert not list((tmp_path / "work" / "job").glob(training_job.RESULT))
