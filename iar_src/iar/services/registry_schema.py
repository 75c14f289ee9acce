"""Tables of the provenance registry, the same on SQLite and PostgreSQL; `migrations` makes them, step by step.

Digests are 32 bytes, and rows refer to each other by integers: a million questions with their edges take a third of
what they take as text. A making says that an activity made an entity; its edges are what it was made from.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

METADATA = MetaData()
# SQLite numbers rows by itself only where the type is exactly INTEGER.
Number = BigInteger().with_variant(Integer, "sqlite")

ENTITIES = Table(
    "entities",
    METADATA,
    Column("id", Number, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("record_digest", LargeBinary, nullable=False),
)
ACTIVITIES = Table(
    "activities",
    METADATA,
    Column("id", Number, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("run_id", Text, nullable=False, index=True),
    Column("stage", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("record_digest", LargeBinary, nullable=False),
)
RECORDINGS = Table(
    "recordings",
    METADATA,
    Column("id", Number, primary_key=True),
    Column("activity", Number, ForeignKey("activities.id"), nullable=False),
    Column("makings", Integer, nullable=False),
    Column("root", String(64), nullable=False),
    Column("time", Float, nullable=False),
    Column("previous", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
)
MAKINGS = Table(
    "makings",
    METADATA,
    Column("id", Number, primary_key=True),
    Column("entity", Number, ForeignKey("entities.id"), nullable=False),
    Column("recording", Number, ForeignKey("recordings.id"), nullable=False),
    Column("inputs", LargeBinary, nullable=False),
    # Of a making with many edges their number by role, as JSON: who only counts need not read a million.
    Column("sizes", Text, nullable=False),
    Index("makings_by_entity", "entity"),
)
EDGES = Table(
    "edges",
    METADATA,
    Column("making", Number, ForeignKey("makings.id"), nullable=False),
    Column("role", Text, nullable=False),
    Column("input", Number, ForeignKey("entities.id"), nullable=False),
    PrimaryKeyConstraint("making", "role", "input"),
    Index("edges_by_input", "input"),
    sqlite_with_rowid=False,
)
EVENTS = Table(
    "events",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False, index=True),
    Column("payload", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("previous", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
)
