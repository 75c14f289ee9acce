"""The registry on a real PostgreSQL: every common case, and logging in by environment variables."""

import uuid

import pytest
from sqlalchemy import text

from iar.errors import UserError
from iar.methods.digest import digest_text
from iar.records import Lineage
from iar.services.registry import Producer, Registry
from tests.services.registry_cases import *  # noqa: F403
from tests.services.registry_migrations import *  # noqa: F403
from tests.services.registry_tampering import *  # noqa: F403

pytestmark = pytest.mark.services


@pytest.fixture
def registry_url(postgresql_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new database without user and password: those come from the environment."""
    import psycopg

    monkeypatch.setenv("PGUSER", "iar")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    name = f"registry_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(f"postgresql://{postgresql_server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://{postgresql_server}/{name}"


def test_a_wrong_password_is_one_line_without_it(registry_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong-s3cret")

    with pytest.raises(UserError, match=r"password authentication failed for user .iar.*; check register") as refused:
        Registry.open(registry_url)
    assert "\n" not in str(refused.value) and "wrong-s3cret" not in str(refused.value)


def test_a_missing_database_is_named(registry_url: str) -> None:
    with pytest.raises(UserError, match=r'database "nowhere" does not exist; check register.registry_url'):
        Registry.open(registry_url.rpartition("/")[0] + "/nowhere")


def test_the_planner_knows_of_many_entries_as_soon_as_they_are_written(registry_url: str) -> None:
    registry = Registry.open(registry_url)
    entries = [Lineage("chunk", digest_text(str(number)), str(number), {}) for number in range(1000)]
    registry.record(entries, Producer("run", "qa-build", "code", "config", 17, 0.0, 1.0))

    with registry.engine.connect() as connection:
        known = connection.execute(text("SELECT reltuples FROM pg_class WHERE relname = 'entities'")).scalar_one()
    registry.close()
    assert known == 1000
