"""Alembic runs this for every command; the connection, in its transaction, comes from `migrations.upgrade`."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"], version_table=attributes["version_table"], transactional_ddl=True
)
context.run_migrations()
