"""Shared fixtures."""

from pathlib import Path

import pytest

from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a random two-layer model; read-only for the tests."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
