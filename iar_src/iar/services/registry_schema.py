"""Tables of the provenance registry, the same on SQLite and PostgreSQL."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

METADATA = MetaData()
# Prefixes are found by comparing text, so its order must not follow a language: Danish sorts "aa" last.
Digest = Text().with_variant(Text(collation="C"), "postgresql")

ENTITIES = Table(
    "entities",
    METADATA,
    Column("digest", Digest, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("record_digest", String(64), nullable=False),
)
ACTIVITIES = Table(
    "activities",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("code_version", Text, nullable=False),
    Column("config_digest", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("started", Float, nullable=False),
    Column("seconds", Float, nullable=False),
)
EDGES = Table(
    "edges",
    METADATA,
    Column("product", Digest, ForeignKey("entities.digest"), nullable=False),
    Column("role", Text, nullable=False),
    Column("input", Digest, ForeignKey("entities.digest"), nullable=False),
    Column("activity", String(64), ForeignKey("activities.id"), nullable=False),
    PrimaryKeyConstraint("product", "role", "input", "activity"),
    Index("edges_by_input", "input"),
)
EVENTS = Table(
    "events",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("previous", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
)
