"""Opening the registry's database: SQLite or PostgreSQL, one transaction at a time, errors in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from iar.errors import TemporaryError, UserError

LOCK_WAIT_SECONDS = 60
CONNECT_SECONDS = 10
CACHE_KIB = 64 << 10
SCHEMA_LOCK = 0x1A2  # any number, the same for every writer


def parse_url(address: str) -> URL:
    """Return the database URL. Raises UserError for another database than the two, or for a password in it."""
    try:
        url = make_url(address)
    except ArgumentError:
        raise UserError("register.registry_url: not a URL; write it as postgresql://host/database") from None
    shown = url.set(query={}).render_as_string(hide_password=True)
    if url.password is not None or "password" in url.query:
        raise UserError(f"register.registry_url: {shown} holds a password; set PGUSER and PGPASSWORD instead")
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UserError(
            f"register.registry_url: {shown} is {backend!r}; use sqlite:///file or postgresql://host/database"
        )
    return url.set(drivername="postgresql+psycopg") if backend == "postgresql" else url


def open_engine(url: URL) -> Engine:
    """Return an engine on `url`; the folder of a SQLite file is made. Nothing is connected yet."""
    if url.get_backend_name() == "postgresql":
        wait = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
        try:
            return create_engine(url, connect_args=wait, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise UserError(f"{url}: package {error.name} is missing; pip install 'psycopg[binary]'") from error
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def open_to_read(url: URL) -> Engine | None:
    """Return an engine on a database that holds a registry, None where there is none; nothing is made.

    One of an earlier version is brought up to date. Raises UserError where it cannot be reached, or must be brought
    up to date and may not be written.
    """
    from iar.services import migrations

    database = Path(url.database or "")
    engine, sealed = None, False
    if url.get_backend_name() == "postgresql":
        engine = open_engine(url)
    elif database.is_file():
        sealed = _is_sealed(database)
        engine = create_engine(_sealed(database)) if sealed else open_engine(url)
    if engine is None:
        return None
    with _explained(engine):
        with engine.connect() as connection:
            now = migrations.revision(connection)
        if not now or now == migrations.HEAD:
            return engine if now else None
        if sealed:
            raise UserError(f"registry {database}: of an earlier version; open it once where it may be written")
        create_tables(engine)
    return engine


def _is_sealed(database: Path) -> bool:
    """Return whether nobody can write here, and nobody has left changes beside the file."""
    journal = database.with_name(f"{database.name}-wal")
    return not os.access(database.parent, os.W_OK, effective_ids=True) and not journal.exists()


def _sealed(database: Path) -> URL:
    """Return the URL by which SQLite reads a file without making others beside it."""
    query = {"mode": "ro", "immutable": "1", "uri": "true"}
    return URL.create("sqlite", database=f"file:{quote(str(database.resolve()))}", query=query)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would start deferred transactions of its own
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    # Digests come in no order: with the default of 2 MB every insert into a large registry would read a page.
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that writes after reading fails at once when another writer was faster.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def transaction(engine: Engine, writes: bool) -> Iterator[Connection]:
    """Yield a connection in one transaction. Raises TemporaryError where the database fails or stays locked."""
    try:
        with engine.connect().execution_options(writes=writes) as connection, connection.begin():
            yield connection
    except (OperationalError, InterfaceError) as error:
        raise TemporaryError(f"registry {engine.url}: {first_line(error)}; the same command may be repeated") from error


def create_tables(engine: Engine) -> None:
    """Make the schema, or bring an older one up to date, one process at a time, all or nothing.

    Raises UserError where the database is unreachable or made by a later version.
    """
    from iar.services import migrations

    with _explained(engine):
        with engine.connect() as connection:
            if migrations.revision(connection) == migrations.HEAD:
                return
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})"))
            if migrations.revision(connection) != migrations.HEAD:
                migrations.upgrade(connection)


@contextmanager
def _explained(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        hint = "check register.registry_url, PGUSER and PGPASSWORD, and that the database runs"
        if engine.dialect.name == "sqlite":
            hint = "check register.registry_url and that the file is a writable SQLite database"
        raise UserError(f"registry {engine.url}: {first_line(error)}; {hint}") from error


def first_line(error: Any) -> str:
    """Return the first line of a driver's message, with the password of the environment blanked out."""
    lines = str(error.orig).strip().splitlines()
    line = lines[0].strip() if lines else type(error.orig).__name__
    password = os.environ.get("PGPASSWORD", "")
    return line.replace(password, "***") if password else line
