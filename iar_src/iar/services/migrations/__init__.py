"""The registry's schema, revision by revision: an empty database is made at the newest, an older one is brought there.

The revision stands in a table of its own, `registry_version`, for MLflow may keep its own in the same database.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from iar.errors import UserError
from iar.services.registry_schema import METADATA

VERSION_TABLE = "registry_version"
HEAD = "r2"
FIRST = "r1"
FIRST_TABLES = {"entities", "edges", "activities", "events"}


def revision(connection: Connection) -> str:
    """Return the revision of a database, "" for one without a registry."""
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        return str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or "")
    # Before there were revisions, the four tables stood alone.
    return FIRST if tables >= FIRST_TABLES else ""


def upgrade(connection: Connection) -> None:
    """Bring a database to the newest revision in the transaction of `connection`.

    Raises UserError for one that a later version of this program made.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes |= {"version_table": VERSION_TABLE, "connection": connection}
    now = revision(connection)
    if now and now not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        raise UserError(f"the registry has schema {now}, newer than {HEAD}: install the newer iar that made it")
    if not now:
        METADATA.create_all(connection)
    if VERSION_TABLE not in inspect(connection).get_table_names():
        command.stamp(config, now or HEAD)
    command.upgrade(config, HEAD)
