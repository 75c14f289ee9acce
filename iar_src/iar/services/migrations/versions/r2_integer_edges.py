"""Digests as 32 bytes, rows by integers, a making for every entity and activity, recordings in a hash chain.

What stood in the first schema is carried over as it stood: digests of records are not made anew, so what was changed
before shows after too. An entity without an edge had no activity on record; its making is that of this migration.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"

BATCH = 2000
MANY = 500
Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Put the rows aside, make the new tables, and fill them."""
    for table in ("edges", "entities", "activities"):
        op.execute(f"CREATE TABLE {table}_r1 AS SELECT * FROM {table}")
        op.drop_table(table)
    _make_tables()
    op.create_index("ix_events_subject", "events", ["subject"])
    _fill(op.get_bind())
    for table in ("edges", "entities", "activities"):
        op.drop_table(f"{table}_r1")


def _make_tables() -> None:
    op.create_table(
        "entities",
        sa.Column("id", Number, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("record_digest", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "activities",
        sa.Column("id", Number, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("run_id", sa.Text, nullable=False, index=True),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("record_digest", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "recordings",
        sa.Column("id", Number, primary_key=True),
        sa.Column("activity", Number, sa.ForeignKey("activities.id"), nullable=False),
        sa.Column("makings", sa.Integer, nullable=False),
        sa.Column("root", sa.String(64), nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "makings",
        sa.Column("id", Number, primary_key=True),
        sa.Column("entity", Number, sa.ForeignKey("entities.id"), nullable=False),
        sa.Column("recording", Number, sa.ForeignKey("recordings.id"), nullable=False),
        sa.Column("inputs", sa.LargeBinary, nullable=False),
        sa.Column("sizes", sa.Text, nullable=False),
    )
    op.create_index("makings_by_entity", "makings", ["entity"])
    op.create_table(
        "edges",
        sa.Column("making", Number, sa.ForeignKey("makings.id"), nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("input", Number, sa.ForeignKey("entities.id"), nullable=False),
        sa.PrimaryKeyConstraint("making", "role", "input"),
        sqlite_with_rowid=False,
    )
    op.create_index("edges_by_input", "edges", ["input"])


def _fill(connection: sa.Connection) -> None:
    def rows(query: str) -> Iterator[dict[str, Any]]:
        return (dict(row) for row in connection.execute(sa.text(query)).mappings().all())

    number_of: dict[str, int] = {}
    records: dict[str, bytes] = {}
    entities = []
    for number, row in enumerate(rows("SELECT * FROM entities_r1 ORDER BY digest"), 1):
        number_of[row["digest"]], records[row["digest"]] = number, bytes.fromhex(row["record_digest"])
        entities.append(
            row | {"id": number, "digest": bytes.fromhex(row["digest"]), "record_digest": records[row["digest"]]}
        )
    _insert(connection, "entities", entities)

    inputs: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    made = set()
    for row in rows("SELECT * FROM edges_r1 ORDER BY activity, product, role, input"):
        inputs[row["activity"]][row["product"]].append((row["role"], row["input"]))
        made.add(row["product"])
    activities = {row["id"]: row for row in rows("SELECT * FROM activities_r1 ORDER BY started, id")}
    if sources := sorted(number_of.keys() - made):
        unknown = {"run_id": "", "stage": "before-schema-2", "code_version": "", "config_digest": "", "seed": 0}
        id_ = _digest_json(unknown)
        activities = {id_: unknown | {"id": id_, "started": 0.0, "seconds": 0.0}} | activities
        inputs[id_] = defaultdict(list, {digest: [] for digest in sources})
    _record(connection, activities, inputs, number_of, records)
    if connection.dialect.name == "postgresql":
        for table in ("entities", "activities", "events"):
            next_ = f"(SELECT coalesce(max(id), 0) + 1 FROM {table})"
            connection.execute(sa.text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {next_}, false)"))


def _record(
    connection: sa.Connection,
    activities: dict[str, dict[str, Any]],
    inputs: dict[str, dict[str, list[tuple[str, str]]]],
    number_of: dict[str, int],
    records: dict[str, bytes],
) -> None:
    """Write activities, a recording each, makings and edges, in this order: rows name only rows that are there."""
    makings: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    done, recordings, previous, now = [], [], "", time.time()
    for number, (id_, row) in enumerate(activities.items(), 1):
        payload = _canonical({name: row[name] for name in sorted(row.keys() - {"id"})})
        content = {"digest": id_, "run_id": row["run_id"], "stage": row["stage"], "payload": payload}
        record = hashlib.sha256(_canonical(content).encode()).digest()
        done.append(content | {"id": number, "digest": bytes.fromhex(id_), "record_digest": record})
        root = hashlib.sha256()
        for product, pairs in sorted(inputs[id_].items()):
            digest = hashlib.sha256("".join(f"{role}:{source}\n" for role, source in sorted(pairs)).encode()).digest()
            root.update(records[product] + digest)
            sizes = _canonical(Counter(role for role, _ in pairs)) if len(pairs) > MANY else ""
            making = {"id": len(makings) + 1, "entity": number_of[product], "recording": number, "inputs": digest}
            makings.append(making | {"sizes": sizes})
            edges += [{"making": len(makings), "role": role, "input": number_of[source]} for role, source in pairs]
        recording = {
            "activity": record.hex(), "makings": len(inputs[id_]), "root": root.hexdigest(), "time": now,
            "previous": previous,
        }  # fmt: skip
        previous = _digest_json(recording)
        recordings.append(recording | {"id": number, "activity": number, "digest": previous})
    for table, rows in (("activities", done), ("recordings", recordings), ("makings", makings), ("edges", edges)):
        _insert(connection, table, rows)


def _insert(connection: sa.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        names = list(some[0])
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"
        connection.execute(sa.text(statement), some)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest_json(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()
