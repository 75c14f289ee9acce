"""The registry from 10,000 to 1,000,000 questions: ingest against a plain bulk insert, size, and how long answers take.

    python benchmarks/bench_registry.py [--sizes 10000 100000 1000000] [--postgresql HOST:PORT]

A question has a text of some 250 characters; ten stand on a chunk, ten chunks in a document. One dataset has all; a
model is trained on it, 25 candidates are merged, scored and decided between. A row is one of entities, makings or
edges.
The peer writes the same rows into tables of the same shape by the driver's own bulk path (SQLite: executemany in one
transaction; PostgreSQL: COPY), with no index but the keys, no digest and no check. PostgreSQL is measured where its
programs are on this machine, on a server of the benchmark's own, or at --postgresql with PGUSER and PGPASSWORD.
"""

import argparse
import os
import platform
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from iar.methods.digest import digest_text
from iar.records import Lineage, write_json
from iar.services.lineage import render_downstream, render_upstream, render_way
from iar.services.registry import Producer, Registry
from iar.services.retraction import damage, retract
from tests.ports import free_port

PRODUCER = Producer("bench-0123456789", "qa-build", "1", "c", 17, 1.0, 1.0)
QUESTIONS_A_CHUNK, CHUNKS_A_DOCUMENT, CANDIDATES = 10, 10, 25
REPEATS = 5
WORDS = [
    "the",
    "lantern",
    "of",
    "Velm",
    "was",
    "lit",
    "in",
    "the",
    "autumn",
    "of",
    "each",
    "year",
    "by",
    "a",
    "warden",
    "who",
    "kept",
    "the",
    "ledger",
    "of",
    "the",
    "river",
    "gauge",
]


def entries(count: int) -> Iterator[Lineage]:
    """Yield the entries of a run over `count` questions, inputs before what is made from them."""
    documents, questions = [], []
    for number in range(-(-count // (QUESTIONS_A_CHUNK * CHUNKS_A_DOCUMENT))):
        source = named("source", f"s{number}")
        document = named("document", f"d{number}", {"source_digest": source.digest}, ("read-from", source.digest))
        yield from (source, document)
        documents.append(document.digest)
        for part in range(CHUNKS_A_DOCUMENT):
            chunk = named("chunk", f"c{number}.{part}", {"start": part, "end": part + 1}, ("part-of", document.digest))
            yield chunk
            for place in range(min(QUESTIONS_A_CHUNK, count - len(questions))):
                name = f"q{number}.{part}.{place}"
                text = {
                    "question": f"{name}: {' '.join(WORDS)}?",
                    "answer": " ".join(WORDS[:10]),
                    "chunk_id": chunk.name,
                }
                question = named("qa", name, text, ("about", chunk.digest))
                questions.append(question.digest)
                yield question
    for some in batched(questions, 2000):
        yield named("dataset", "data", {}, *(("contains", one) for one in some))
    yield named("dataset", "data", {}, *(("drawn-from", one) for one in documents))


def batched(items: list[str], size: int) -> Iterator[list[str]]:
    """Return the items, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def models() -> list[Lineage]:
    """Return what was trained, merged, scored and decided on the dataset."""
    data = named("dataset", "data").digest
    base = named("checkpoint", "base")
    tuned = named("checkpoint", "tuned", {}, ("trained-on", data), ("trained-from", base.digest))
    made = [
        named("candidate", f"m{number}", {}, ("base", base.digest), ("tuned", tuned.digest))
        for number in range(CANDIDATES)
    ]
    scores = [named("scores", one.name, {}, ("evaluated", one.digest)) for one in made]
    decision = named("decision", "pick", {}, ("chosen", made[0].digest), *(("considered", one.digest) for one in made))
    model = named("checkpoint", "model", {}, ("weights", made[0].digest), ("selected-by", decision.digest))
    return [base, tuned, *made, *scores, decision, model]


def named(kind: str, name: str, payload: dict[str, Any] | None = None, *inputs: tuple[str, str]) -> Lineage:
    """Return an entry whose digest follows from its kind and name."""
    return Lineage(kind, digest_text(f"{kind}/{name}"), name, payload or {}, inputs)


def measure(url: str, count: int, bulk: Callable[[], float]) -> dict[str, float]:
    """Return the figures of one size on one database, which is empty."""
    registry = Registry.open(url)
    started = time.perf_counter()
    registry.record(entries(count), PRODUCER)
    registry.record(models(), PRODUCER)
    seconds = time.perf_counter() - started
    rows = tally(registry)
    figures = {"rows": rows, "ingest_rows_per_second": rows / seconds, "bytes": size_on_disk(registry)}
    figures["bulk_rows_per_second"] = rows / bulk()
    model, tuned, document = (
        named(*one).digest for one in (("checkpoint", "model"), ("checkpoint", "tuned"), ("document", "d1"))
    )
    figures["upstream_ms"] = timed(lambda: render_upstream(registry, model))
    figures["downstream_ms"] = timed(lambda: render_downstream(registry, tuned))
    figures["downstream_of_document_ms"] = timed(lambda: render_downstream(registry, document))
    figures["why_ms"] = timed(lambda: render_way(registry, model, document))
    started = time.perf_counter()
    made, _ = retract(registry, document, "measured")
    assert damage(registry, made.subject).counts["dataset"] == 1
    figures["retract_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    assert registry.verify([registry.head()]) == []
    figures["verify_rows_per_second"] = rows / (time.perf_counter() - started)
    registry.close()
    return figures


def timed(ask: Callable[[], object]) -> float:
    """Return the median time of a question in milliseconds."""
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        assert ask()
        taken.append(time.perf_counter() - started)
    return 1000 * sorted(taken)[REPEATS // 2]


def tally(registry: Registry) -> int:
    """Return the number of rows."""
    with registry.engine.connect() as connection:
        count = "SELECT count(*) FROM "
        return sum(connection.exec_driver_sql(count + name).scalar_one() for name in ("entities", "makings", "edges"))


def size_on_disk(registry: Registry) -> int:
    """Return the bytes of the database, of SQLite with what its log holds."""
    with registry.engine.connect() as connection:
        if registry.engine.dialect.name == "postgresql":
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        pages, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")
        )
        return int(pages * size)


TABLES = {
    "entities": "id INTEGER PRIMARY KEY, digest {bytes}, kind TEXT, name TEXT, payload TEXT, record_digest {bytes}",
    "makings": "id INTEGER PRIMARY KEY, entity INTEGER, recording INTEGER, inputs {bytes}, sizes TEXT",
    "edges": "making INTEGER, role TEXT, input INTEGER, PRIMARY KEY (making, role, input)",
}


def rows_of(registry: Registry) -> dict[str, list[Any]]:
    """Return all rows of a registry, to be written by the peer."""
    with registry.engine.connect() as connection:
        return {name: [tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {name}")] for name in TABLES}


def bulk_sqlite(url: str, path: Path) -> float:
    """Write the rows of a registry into a new SQLite file; return the seconds."""
    registry = Registry.open(url)
    rows = rows_of(registry)
    registry.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    started = time.perf_counter()
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns.format(bytes='BLOB')})")
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[table][0]))})", rows[table])
    connection.commit()
    seconds = time.perf_counter() - started
    connection.close()
    path.unlink()
    return seconds


def bulk_postgresql(url: str, server: str) -> float:
    """Copy the rows of a registry into a new database; return the seconds."""
    import psycopg

    registry = Registry.open(url)
    rows = rows_of(registry)
    registry.close()
    with database(server, "bulk") as name, psycopg.connect(f"postgresql://{server}/{name}") as connection:
        started = time.perf_counter()
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns.format(bytes='BYTEA')})")
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows[table]:
                    copy.write_row(row)
        connection.commit()
        return time.perf_counter() - started


@contextmanager
def database(server: str, name: str) -> Iterator[str]:
    """Make a database, and drop it at the end."""
    import psycopg

    with psycopg.connect(f"postgresql://{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE bench_{name}")
        try:
            yield f"bench_{name}"
        finally:
            connection.execute(f"DROP DATABASE bench_{name} WITH (FORCE)")


@contextmanager
def own_server() -> Iterator[str]:
    """Yield HOST:PORT of a PostgreSQL server that lives until the block ends, "" where its programs are missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        yield ""
        return
    home, port = Path(tempfile.mkdtemp(prefix="iar-bench-postgresql-")), free_port()
    (home / "password").write_text("bench")
    root = os.geteuid() == 0
    prefix = ["runuser", "-u", "postgres", "--"] if root else []
    for path in (home, home / "password") if root else ():
        shutil.chown(path, "postgres")

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [*prefix, str(found[-1].parent / program), *arguments], cwd="/", check=True, stdout=subprocess.DEVNULL
        )

    run("initdb", "-D", f"{home}/data", "-U", "iar", "-A", "scram-sha-256", f"--pwfile={home}/password", "-E", "UTF8")
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home}"
    run("pg_ctl", "-D", f"{home}/data", "-o", options, "-l", f"{home}/log", "-w", "start")
    os.environ |= {"PGUSER": "iar", "PGPASSWORD": "bench"}
    try:
        yield f"127.0.0.1:{port}"
    finally:
        run("pg_ctl", "-D", f"{home}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(home)


def main() -> None:
    """Print a line a database and size, and write the figures as JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--postgresql", metavar="HOST:PORT", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}

    def report(backend: str, count: int, figures: dict[str, float]) -> None:
        results[f"registry {backend} {count}"] = figures | {"questions": count, "machine": platform.processor()}
        print(
            f"registry on {backend}, {count} questions: "
            + ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        )

    for count in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/registry.sqlite"
            report("sqlite", count, measure(url, count, lambda url=url, at=folder: bulk_sqlite(url, Path(at) / "bulk")))
    with own_server() if not arguments.postgresql else nullcontext(arguments.postgresql) as server:
        for count in arguments.sizes if server else ():
            with database(server, "registry") as name:
                url = f"postgresql://{server}/{name}"
                report("postgresql", count, measure(url, count, lambda url=url: bulk_postgresql(url, server)))
    if arguments.out:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
