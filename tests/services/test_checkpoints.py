import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from iar.errors import PermanentError, UserError
from iar.services.checkpoints import MappedTensors, TensorInfo, recorded_digest, safetensors_header, weights_digest


def test_the_digest_of_one_file_is_its_sha256(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    expected = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert weights_digest(tmp_path) == recorded_digest(tmp_path) == expected


def test_a_recorded_digest_goes_first(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text('{"digest": "abc"}')
    assert recorded_digest(tmp_path) == "abc"


def test_a_broken_record_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("[]")
    with pytest.raises(UserError, match=r'checkpoint.json: no \{"digest": ...\} record; delete the file'):
        recorded_digest(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \*.safetensors file"):
        weights_digest(tmp_path)


def test_a_truncated_file_is_no_checkpoint(tmp_path: Path) -> None:
    save_file({"w": torch.ones(300)}, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-10])
    with pytest.raises(PermanentError, match=r"model.safetensors: not a complete safetensors file"):
        MappedTensors(tmp_path)


def test_a_stale_second_file_is_refused_by_the_tensor_it_repeats(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    save_file({"w": torch.ones(3)}, tmp_path / "old.safetensors")
    with pytest.raises(UserError, match="tensor 'w' is also in another file"):
        MappedTensors(tmp_path)


def test_an_index_that_lists_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "model-1.safetensors")
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"tensor 'v': model-2.safetensors lacks it"):
        MappedTensors(tmp_path)


def test_a_quantised_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="tensor 'w' is I8; save the model in fp32, fp16 or bf16"):
        MappedTensors(tmp_path)


def test_a_header_made_beforehand_fits_the_library(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "é": torch.ones(0, 4), "scalar": torch.tensor(2.0)}
    infos = [TensorInfo(name, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()]
    data = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    (tmp_path / "model.safetensors").write_bytes(safetensors_header(infos) + data)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
