"""What opening a registry of an earlier version must do, on every database."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, text

from iar.errors import UserError
from iar.methods.digest import digest_text
from iar.services.database import open_engine, parse_url
from iar.services.migrations import VERSION_TABLE
from iar.services.migrations.versions import r1_text_digests
from iar.services.registry import Registry
from iar.services.registry_schema import METADATA
from tests.services.registry_cases import PRODUCER, a_run, entry

DUMP = Path(__file__).with_name("registry_r1.sql")


@pytest.fixture
def engine(registry_url: str) -> Engine:
    return open_engine(parse_url(registry_url))


@pytest.fixture
def earlier(engine: Engine) -> Engine:
    """A database that the first version wrote: two documents with their questions, three activities, two events."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        with Operations.context(MigrationContext.configure(connection)):
            r1_text_digests.upgrade()
        rows = [line for line in DUMP.read_text(encoding="utf-8").splitlines() if line.startswith("INSERT")]
        order = ("entities", "activities", "edges", "events")
        for line in sorted(rows, key=lambda line: order.index(line.split('"')[1])):
            connection.exec_driver_sql(line.replace("%", "%%"))
    return engine


def test_an_empty_database_and_an_upgraded_one_have_the_declared_schema(earlier: Engine, registry_url: str) -> None:
    Registry.open(registry_url).close()

    with earlier.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []


def test_an_earlier_registry_is_upgraded_when_it_is_opened_and_nothing_is_lost(
    earlier: Engine, registry_url: str
) -> None:
    registry = Registry.open(registry_url)

    model = registry.find(digest_text("model"))
    assert (model.kind, model.name, model.payload) == ("checkpoint", "theta_I", {"steps": 3})
    assert {role for role, _ in model.inputs} == {"trained-on", "trained-from"}
    chunk = a_run()["c1"].digest
    assert {maker["code_version"] for maker in registry.makers(chunk)} == {"1.0", "1.1"}
    assert len(registry.upstream(model.digest)) == 13
    assert [maker["stage"] for maker in registry.makers(digest_text("velm"))] == ["before-schema-2"]
    assert [event.kind for event in registry.events()] == ["retract", "promote"]
    assert registry.find(digest_text("velm")).payload["title"] == "Größe – 名"
    assert registry.verify() == []

    registry.record([entry("document", "new")], PRODUCER)
    registry.event("step", "x", {})
    assert registry.verify() == []


def test_what_was_changed_before_the_upgrade_still_shows_after(earlier: Engine, registry_url: str) -> None:
    with earlier.begin() as connection:
        connection.execute(text("UPDATE entities SET name = 'theta_IA' WHERE kind = 'checkpoint' AND name = 'theta_I'"))

    assert Registry.open(registry_url).verify() == [
        f"entity checkpoint:{digest_text('model')[:12]}: changed after it was recorded"
    ]


def test_opening_to_read_upgrades_too(earlier: Engine, registry_url: str) -> None:
    registry = Registry.open_to_read(registry_url)

    assert registry is not None and registry.find(digest_text("model")).name == "theta_I"


def test_a_registry_of_a_later_version_is_refused(engine: Engine, registry_url: str) -> None:
    Registry.open(registry_url).close()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = 'r99'"))

    for open_ in (Registry.open, Registry.open_to_read):
        with pytest.raises(UserError, match="has schema r99, newer than r2: install the newer iar that made it"):
            open_(registry_url)
