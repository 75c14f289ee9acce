"""The changes of document sets, read from checkpoints."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from iar.errors import UserError
from iar.services import delta_facts
from iar.services.delta_facts import compare_deltas, read_deltas, write_deltas
from tests.tiny_model import make_tiny_model


def test_the_facts_are_those_of_the_tensors_however_they_are_cut(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tiny_model_folder, *(make_tiny_model(tmp_path / str(seed), seed) for seed in (1, 2))]
    found = write_deltas(tmp_path, folders)
    assert read_deltas(tmp_path) == found and read_deltas(tiny_model_folder) == []
    flat = [
        torch.cat([one.flatten() for _, one in sorted(load_file(f / "model.safetensors").items())]) for f in folders
    ]
    first, second = flat[1] - flat[0], flat[2] - flat[1]
    assert found[0].norms == pytest.approx([float(first.norm()), float(second.norm())], rel=1e-5)
    assert found[0].cosines == pytest.approx([float(torch.cosine_similarity(first, second, dim=0))], abs=1e-5)
    assert found[0].elements == len(flat[0])
    monkeypatch.setattr(delta_facts, "BLOCK_ELEMENTS", 1000)
    cut = compare_deltas(folders)
    assert [one.group for one in cut] == [one.group for one in found]
    assert cut[0].norms == pytest.approx(found[0].norms)


def test_checkpoints_of_another_shape_are_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    from safetensors.torch import save_file

    save_file({name: one for name, one in tensors.items() if "norm" not in name}, other / "model.safetensors")
    with pytest.raises(UserError, match="is missing"):
        compare_deltas([tiny_model_folder, other])
