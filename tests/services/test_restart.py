"""Restart points are whole or not there, and belong to one training."""

from pathlib import Path

import pytest
import torch

from iar.errors import UserError
from iar.services.distributed import World
from iar.services.restart import MARKER, RestartPoints

IDENTITY = {"rows": "abc", "seed": 5}


def points(folder: Path, keep: int = 2, **changed: object) -> RestartPoints:
    return RestartPoints(folder / "restart", keep, IDENTITY | changed, World())


def filled(value: float) -> dict[str, torch.Tensor]:
    return {"master/a": torch.full((3, 2), value), "exp_avg/a": torch.full((3, 2), -value)}


def test_the_newest_point_comes_back_with_its_bits(tmp_path: Path) -> None:
    assert points(tmp_path).newest() is None
    for step in (3, 12):
        points(tmp_path).save(step, lambda step=step: filled(step / 7))
    point = points(tmp_path).newest()
    assert point is not None and point.step == 12
    for name, tensor in filled(12 / 7).items():
        assert torch.equal(point.tensor(name), tensor)


def test_as_many_points_are_kept_as_asked_for(tmp_path: Path) -> None:
    for step in range(1, 6):
        points(tmp_path, keep=3).save(step, lambda: filled(1.0))
    names = sorted(path.name for path in (tmp_path / "restart").iterdir())
    assert names == ["step-00000003", "step-00000004", "step-00000005"]


@pytest.mark.parametrize("damage", ["no marker", "cut tensors", "never renamed"])
def test_a_point_that_is_not_whole_is_passed_over_for_the_one_before(tmp_path: Path, damage: str) -> None:
    for step in (1, 2):
        points(tmp_path).save(step, lambda step=step: filled(float(step)))
    newest = tmp_path / "restart" / "step-00000002"
    if damage == "no marker":
        (newest / MARKER).unlink()
    elif damage == "cut tensors":
        state = newest / "state-0-of-1.safetensors"
        state.write_bytes(state.read_bytes()[:-4])
    else:
        newest.rename(newest.with_suffix(".part"))
    point = points(tmp_path).newest()
    assert point is not None and point.step == 1
    points(tmp_path, keep=1).save(2, lambda: filled(2.0))
    assert [path.name for path in (tmp_path / "restart").iterdir()] == ["step-00000002"], "the damaged one is gone"


def test_a_point_of_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    points(tmp_path).save(1, lambda: filled(1.0))
    with pytest.raises(UserError, match=r"step-00000001: .* rows was abc, is xyz; delete the folder to train from"):
        points(tmp_path, rows="xyz").newest()


def test_a_point_of_another_model_is_refused(tmp_path: Path) -> None:
    points(tmp_path).save(1, lambda: filled(1.0))
    point = points(tmp_path).newest()
    assert point is not None
    with pytest.raises(UserError, match="lacks master/b, so it belongs to another model; delete the folder"):
        point.tensor("master/b")


def test_clearing_leaves_nothing(tmp_path: Path) -> None:
    points(tmp_path).save(1, lambda: filled(1.0))
    points(tmp_path).clear()
    assert list(tmp_path.iterdir()) == []
