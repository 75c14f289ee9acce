"""The first schema: digests as text, an edge names product, input and activity."""

import sqlalchemy as sa
from alembic import op

revision = "r1"
down_revision = None

Digest = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables. Databases of that time have them already, without a revision."""
    op.create_table(
        "entities",
        sa.Column("digest", Digest, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("record_digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "activities",
        sa.Column("id", sa.String(64), primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("run_id", "stage", "code_version", "config_digest")),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
    )
    op.create_table(
        "edges",
        sa.Column("product", Digest, sa.ForeignKey("entities.digest"), nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("input", Digest, sa.ForeignKey("entities.digest"), nullable=False),
        sa.Column("activity", sa.String(64), sa.ForeignKey("activities.id"), nullable=False),
        sa.PrimaryKeyConstraint("product", "role", "input", "activity"),
    )
    op.create_index("edges_by_input", "edges", ["input"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )
