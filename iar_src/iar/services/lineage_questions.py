"""Questions to the registry about datasets: what they leave out, who used them, how much of them people wrote."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import exists, select

from iar.errors import UserError
from iar.methods.textnorm import words_of
from iar.services.database import transaction
from iar.services.dataset_lineage import CERTIFIED_BY, RULES
from iar.services.example_sets import DOCUMENTS, GIVEN, KIND, QUOTED, SEEN_AS, SYNTHETIC
from iar.services.lineage_activities import failed_uses
from iar.services.lineage_members import MADE, SOURCE, Member, dataset, members, products
from iar.services.registry import Registry, short_id
from iar.services.registry_records import DRAWN_FROM, FINISHED
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, MAKINGS, RECORDINGS

TEXTS = ("qa", "retelling", "example")


@dataclass(frozen=True)
class Coverage:
    """Chunks of a dataset's documents, those nothing was asked about, and its pairs that nobody certified; ids.

    `certifiers`: those that every pair has passed, by id with their name.
    """

    chunks: int
    unasked: tuple[str, ...]
    pairs: int
    uncertified: tuple[str, ...]
    certifiers: dict[str, str]


@dataclass(frozen=True)
class RealShare:
    """Words or tokens (`unit`) by who wrote them: people, rules that quote these people, a language model.

    `given`: of instructions from elsewhere, whose writers are not known.

    `share` is what people wrote, in their documents or quoted, of what is known; None where nothing is.
    """

    documents: int
    quoted: int
    synthetic: int
    share: float | None
    unit: str = "words"
    given: int = 0


@dataclass(frozen=True)
class Use:
    """That an activity used an entry, in a role, to make something; without `id` and `name` where it failed."""

    run_id: str
    stage: str
    role: str
    id: str
    name: str
    status: str = FINISHED


def coverage(registry: Registry, id_: str) -> Coverage:
    """Return what a dataset leaves out: chunks without a question, pairs without a certifier. Raises UserError."""
    digest = dataset(registry, id_)
    pairs = {one: member for one, member in members(registry, digest).items() if member.kind == "qa"}
    asked = {str(member.payload.get(key)) for member in pairs.values() for key in ("chunk_id", "other_chunk_id")}
    chunks: dict[str, Member] = {}
    for document in members(registry, digest, DRAWN_FROM):
        chunks |= products(registry, document, "part-of")
    unasked = [chunk.id for chunk in chunks.values() if str(chunk.payload.get("id")) not in asked]
    certifiers = members(registry, digest, CERTIFIED_BY)
    of_all = {one.id: one.name for one in certifiers.values() if one.payload.get("certifies") == "qa"}
    certified = pairs.keys() if of_all else _certified(registry)
    uncertified = [member.id for member in pairs.values() if member.digest not in certified]
    return Coverage(len(chunks), tuple(unasked), len(pairs), tuple(uncertified), of_all)


def _certified(registry: Registry) -> set[str]:
    """Return what has a certifier of its own, and what a dataset contains that has one for all its questions."""
    held = exists().where(EDGES.c.making == MAKINGS.c.id, EDGES.c.role == CERTIFIED_BY)
    own = select(ENTITIES.c.digest).join(MAKINGS, MAKINGS.c.entity == ENTITIES.c.id).where(held)
    whole = select(EDGES.c.making).where(EDGES.c.role == CERTIFIED_BY)
    inside = select(ENTITIES.c.digest).join(EDGES, EDGES.c.input == ENTITIES.c.id)
    inside = inside.where(EDGES.c.role == "contains", EDGES.c.making.in_(whole))
    with transaction(registry.engine, writes=False) as connection:
        return {digest.hex() for query in (own, inside) for digest in connection.execute(query).scalars()}


def consumed_by(registry: Registry, id_: str) -> list[Use]:
    """Return every direct use of an entry in the order of recording, then those that failed. Raises UserError."""
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
    uses = [Use(row.run_id, row.stage, row.role, short_id(row.kind, row.digest.hex()), row.name) for row in rows]
    failed = (Use(one.run_id, one.stage, role, "", "", one.status) for role, one in failed_uses(registry, digest))
    return [*uses, *failed]


def real_share(registry: Registry, id_: str) -> RealShare:
    """Return who wrote a dataset, in words: its documents, and its questions and texts by their teacher.

    Of training examples, or those of a checkpoint, it is who wrote their targets, in tokens of the model. Raises
    UserError for anything else, and where the words of a document or text were not recorded.
    """
    entry = registry.find(id_)
    sets = [digest for role, digest in entry.inputs if role == SEEN_AS]
    if entry.kind == KIND or sets:
        seen = entry if entry.kind == KIND else registry.find(sets[0])
        return _of_all(Counter(seen.payload["target_tokens"]), "tokens")
    digest = dataset(registry, id_)
    written = Counter({DOCUMENTS: sum(_words(member) for member in members(registry, digest, DRAWN_FROM).values())})
    for member in members(registry, digest).values():
        if member.kind in TEXTS:
            written[QUOTED if member.payload.get("teacher") == RULES else SYNTHETIC] += _words(member)
    return _of_all(written, "words")


def _of_all(written: Counter[str], unit: str) -> RealShare:
    known = written[DOCUMENTS] + written[QUOTED] + written[SYNTHETIC]
    share = (known - written[SYNTHETIC]) / known if known else None
    return RealShare(written[DOCUMENTS], written[QUOTED], written[SYNTHETIC], share, unit, written[GIVEN])


def _words(member: Member) -> int:
    if "words" in member.payload:
        return int(member.payload["words"])
    if "question" in member.payload:
        return len(words_of(f"{member.payload['question']} {member.payload.get('answer', '')}"))
    raise UserError(
        f"{member.id} ({member.name}): its number of words is not on record; an earlier version recorded it, or it was "
        "erased: run its run file again with this version"
    )
