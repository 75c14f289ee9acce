"""Shared fixtures."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.finished_run import Finished, finished_run
from tests.tiny_model import make_tiny_model

# How long one example takes says nothing of the code on a busy machine.
settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a random two-layer model; read-only for the tests."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Finished:
    """A run of the whole pipeline with its real stages; read-only but for what a second run adds."""
    place = tmp_path_factory.getbasetemp()
    # Several workers of one session have folders of their own, side by side.
    place = place.parent if os.environ.get("PYTEST_XDIST_WORKER") else place
    return finished_run(place / "finished-run", tiny_model_folder)
