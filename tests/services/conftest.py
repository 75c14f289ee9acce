"""Fixtures of more than one file."""

from collections.abc import Iterator

import pytest

from tests.services.s3_server import S3Server, s3_server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server with one empty bucket, which AWS's variables lead to."""
    with s3_server(monkeypatch) as server:
        yield server
