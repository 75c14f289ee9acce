"""Questions to the registry about datasets: what they leave out, who used them, how much of them people wrote."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import exists, select

from iar.errors import UserError
from iar.methods.textnorm import words_of
from iar.services.database import transaction
from iar.services.lineage_members import MADE, SOURCE, Member, dataset, members, products
from iar.services.registry import Registry, short_id
from iar.services.registry_records import DRAWN_FROM
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, MAKINGS, RECORDINGS

CERTIFIED = "certified-by"
TEXTS = ("qa", "retelling", "example")
RULES = "offline"  # the teacher that quotes documents by rules and writes nothing of its own


@dataclass(frozen=True)
class Coverage:
    """Chunks of a dataset's documents, those nothing was asked about, and its pairs that nobody certified; ids."""

    chunks: int
    unasked: tuple[str, ...]
    pairs: int
    uncertified: tuple[str, ...]


@dataclass(frozen=True)
class RealShare:
    """Words of a dataset by who wrote them: people, rules that quote these people, a language model.

    `share` is what people wrote, in their documents or quoted, of all; None for a dataset without a word.
    """

    documents: int
    quoted: int
    synthetic: int
    share: float | None


@dataclass(frozen=True)
class Use:
    """That an activity used an entry, in a role, to make something."""

    run_id: str
    stage: str
    role: str
    id: str
    name: str


def coverage(registry: Registry, id_: str) -> Coverage:
    """Return what a dataset leaves out: chunks without a question, pairs without a certifier. Raises UserError."""
    digest = dataset(registry, id_)
    pairs = {one: member for one, member in members(registry, digest).items() if member.kind == "qa"}
    asked = {str(member.payload.get(key)) for member in pairs.values() for key in ("chunk_id", "other_chunk_id")}
    chunks: dict[str, Member] = {}
    for document in members(registry, digest, DRAWN_FROM):
        chunks |= products(registry, document, "part-of")
    unasked = [chunk.id for chunk in chunks.values() if str(chunk.payload.get("id")) not in asked]
    certified = _with_edge(registry, CERTIFIED)
    uncertified = [member.id for member in pairs.values() if member.digest not in certified]
    return Coverage(len(chunks), tuple(unasked), len(pairs), tuple(uncertified))


def _with_edge(registry: Registry, role: str) -> set[str]:
    held = exists().where(EDGES.c.making == MAKINGS.c.id, EDGES.c.role == role)
    query = select(ENTITIES.c.digest).join(MAKINGS, MAKINGS.c.entity == ENTITIES.c.id).where(held)
    with transaction(registry.engine, writes=False) as connection:
        return {digest.hex() for digest in connection.execute(query).scalars()}


def consumed_by(registry: Registry, id_: str) -> list[Use]:
    """Return every direct use of an entry, in the order in which it was recorded. Raises UserError."""
    digest = registry.find(id_).digest
    query = (
        select(ACTIVITIES.c.run_id, ACTIVITIES.c.stage, EDGES.c.role, MADE.c.kind, MADE.c.digest, MADE.c.name)
        .join_from(SOURCE, EDGES, EDGES.c.input == SOURCE.c.id)
        .join(MAKINGS, MAKINGS.c.id == EDGES.c.making)
        .join(MADE, MADE.c.id == MAKINGS.c.entity)
        .join(RECORDINGS, RECORDINGS.c.id == MAKINGS.c.recording)
        .join(ACTIVITIES, ACTIVITIES.c.id == RECORDINGS.c.activity)
        .where(SOURCE.c.digest == bytes.fromhex(digest))
        .order_by(MAKINGS.c.id)
    )
    with transaction(registry.engine, writes=False) as connection:
        rows = connection.execute(query).all()
    return [Use(row.run_id, row.stage, row.role, short_id(row.kind, row.digest.hex()), row.name) for row in rows]


def real_share(registry: Registry, id_: str) -> RealShare:
    """Return who wrote the words of a dataset: its documents, and its questions and texts by their teacher.

    Raises UserError for what is no dataset, and where the words of a document or text were not recorded.
    """
    digest = dataset(registry, id_)
    documents = sum(_words(member) for member in members(registry, digest, DRAWN_FROM).values())
    written: Counter[str] = Counter()
    for member in members(registry, digest).values():
        if member.kind in TEXTS:
            written["quoted" if member.payload.get("teacher") == RULES else "synthetic"] += _words(member)
    total = documents + written.total()
    share = (documents + written["quoted"]) / total if total else None
    return RealShare(documents, written["quoted"], written["synthetic"], share)


def _words(member: Member) -> int:
    if "words" in member.payload:
        return int(member.payload["words"])
    if "question" in member.payload:
        return len(words_of(f"{member.payload['question']} {member.payload.get('answer', '')}"))
    raise UserError(
        f"{member.id} ({member.name}): its number of words is not on record; an earlier version recorded it, or it was "
        "erased: run its run file again with this version"
    )
