"""Tracking against a real `mlflow server` that keeps the artifacts itself."""

from collections.abc import Iterator

import pytest

from tests.services.tracker_cases import *  # noqa: F403
from tests.services_real.conftest import mlflow_server

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow-server")) as address:
        yield address
