"""Shared fixtures."""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.finished_run import REPOSITORY, Finished, finished_run
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


# Minutes each: begun first, so that no worker is left alone with one at the end.
LONGEST = ("test_local_run.py", "test_compile.py", "test_trainer.py", "test_store.py")
FINISHED = "the finished run"


@cache
def part(path: str) -> str:
    """Return what the tests of a file are kept on one worker with: the file, or all that look at the finished run.

    On two workers one would wait for the other to make that run.
    """
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    return FINISHED if re.search(r"^from tests\.finished_run import .*\bFinished\b", text, re.MULTILINE) else path


class PartsSideBySide(LoadFileScheduling):
    """Parts in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return part(nodeid.split("::", 1)[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., None]) -> PartsSideBySide:
    config.option.loadscopereorder = False
    return PartsSideBySide(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; else the order stays."""
    items.sort(key=lambda item: item.path.name not in LONGEST and part(item.nodeid.split("::", 1)[0]) != FINISHED)
