"""Shared fixtures."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiny_model import make_tiny_model

# How long one example takes says nothing of the code on a busy machine.
settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a random two-layer model; read-only for the tests."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
