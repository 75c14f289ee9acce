"""Ways through the registry: all that is reached from some entries, a shortest way between two, counts a step."""

import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Select, func, select

from iar.services.database import transaction
from iar.services.registry_records import DRAWN_FROM, Edge
from iar.services.registry_schema import ACTIVITIES, EDGES, ENTITIES, MAKINGS, RECORDINGS
from iar.services.registry_write import DIGEST, batches, numbers

SUMMED = 500
SOURCE = ENTITIES.alias("source")
MADE = ENTITIES.alias("made")


class Step(NamedTuple):
    """`size` entries, numbered `members` unless they are too many, that play or are given `role` beside `near`."""

    near: int
    role: str
    size: int
    members: tuple[int, ...]


def edges(engine: Engine, digests: Iterable[str], up: bool) -> list[Edge]:
    """Return every edge on a way from `digests`: up to what they were made from, or down to what was made from them."""
    with transaction(engine, writes=False) as connection:
        rows = connection.execute(edges_query(connection, digests, up)).all()
    return sorted(Edge(made.hex(), role, source.hex(), activity.hex()) for made, role, source, activity in rows)


def edges_query(connection: Connection, digests: Iterable[str], up: bool) -> Select[Any]:
    """Return the statement for `edges`: product, role, input and activity, digests as bytes."""
    near = MAKINGS.c.entity if up else EDGES.c.input
    reached_ = _closure(list(numbers(connection, _hex(digests)).values()), up).cte("found")
    return (
        select(MADE.c.digest, EDGES.c.role, SOURCE.c.digest, ACTIVITIES.c.digest)
        .join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making)
        .join(reached_, reached_.c.id == near)
        .join(MADE, MADE.c.id == MAKINGS.c.entity)
        .join(SOURCE, SOURCE.c.id == EDGES.c.input)
        .join(RECORDINGS, RECORDINGS.c.id == MAKINGS.c.recording)
        .join(ACTIVITIES, ACTIVITIES.c.id == RECORDINGS.c.activity)
    )


def upwards(connection: Connection, digests: Iterable[str]) -> Select[Any]:
    """Return the statement for the numbers of some entries and of all that they were made from."""
    return _closure(list(numbers(connection, _hex(digests)).values()), up=True)


def reached(engine: Engine, digests: Iterable[str], up: bool) -> set[str]:
    """Return all entries on the ways from `digests`; these only where a way leads back to them."""
    with transaction(engine, writes=False) as connection:
        starts = list(numbers(connection, _hex(digests)).values())
        found = _closure(starts, up).cte("found")
        rows = connection.execute(select(ENTITIES.c.digest, ENTITIES.c.id).join(found, found.c.id == ENTITIES.c.id))
        return {digest.hex() for digest, number in rows if number not in starts}


def named(engine: Engine, digest: str, up: bool, kind: str) -> list[tuple[str, str]]:
    """Return (digest, name) of the entries of a kind on the ways from an entry, by name."""
    with transaction(engine, writes=False) as connection:
        found = _closure(list(numbers(connection, _hex([digest])).values()), up).cte("found")
        query = select(ENTITIES.c.digest, ENTITIES.c.name).join(found, found.c.id == ENTITIES.c.id)
        query = query.where(ENTITIES.c.kind == kind, ENTITIES.c.digest != bytes.fromhex(digest))
        return [(one.hex(), name) for one, name in connection.execute(query.order_by(ENTITIES.c.name))]


def steps(connection: Connection, frontier: Collection[int], up: bool, most: int) -> list[Step]:
    """Return what is one step from each of `frontier`, by role; the members of more than `most` are not read.

    A dataset that names its documents itself has its members read only up to SUMMED: nothing is hidden behind them.
    """
    found: list[Step] = []
    for some in batches(sorted(frontier)):
        sizes = _sizes(connection, some, up)
        summed = {near for near, role in sizes if role == DRAWN_FROM} if up and most < sys.maxsize else set()
        large = {key for key, size in sizes.items() if size > (min(most, SUMMED) if key[0] in summed else most)}
        members: dict[tuple[int, str], set[int]] = defaultdict(set)
        for role in sorted({role for _, role in sizes.keys() - large}):
            starts = [near for near, of in sizes.keys() - large if of == role]
            for near, far in _pairs(connection, starts, up, role):
                members[near, role].add(far)
        found += [Step(*key, sizes[key], ()) for key in large]
        found += [Step(*key, len(ids), tuple(sorted(ids))) for key, ids in members.items()]
    return found


def _sizes(connection: Connection, some: Sequence[int], up: bool) -> Counter[tuple[int, str]]:
    """Return the number of neighbours by entry and role; upwards, makings with the same inputs count once."""
    if not up:
        query = select(EDGES.c.input, EDGES.c.role, func.count(MAKINGS.c.entity.distinct()))
        query = query.join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making).where(EDGES.c.input.in_(some))
        rows = connection.execute(query.group_by(EDGES.c.input, EDGES.c.role))
        return Counter({(near, role): count for near, role, count in rows})
    first = (
        select(func.min(MAKINGS.c.id)).where(MAKINGS.c.entity.in_(some)).group_by(MAKINGS.c.entity, MAKINGS.c.inputs)
    )
    makings = select(MAKINGS.c.id, MAKINGS.c.entity, MAKINGS.c.sizes).where(MAKINGS.c.id.in_(first))
    sizes: Counter[tuple[int, str]] = Counter()
    few: dict[int, int] = {}
    for making, near, told in connection.execute(makings):
        if told:
            sizes.update({(near, role): count for role, count in json.loads(told).items()})
        else:
            few[making] = near
    counted = select(EDGES.c.making, EDGES.c.role, func.count()).group_by(EDGES.c.making, EDGES.c.role)
    for part in batches(sorted(few)):
        for making, role, count in connection.execute(counted.where(EDGES.c.making.in_(part))):
            sizes[few[making], role] += count
    return sizes


def among(connection: Connection, near: int, role: str, up: bool, wanted: Collection[int]) -> list[int]:
    """Return which of `wanted` are one step from `near` in a role, and the first of all of them, to see their kind."""
    column, far = (MAKINGS.c.entity, EDGES.c.input) if up else (EDGES.c.input, MAKINGS.c.entity)
    query = select(far).join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making)
    query = query.where(column == near, EDGES.c.role == role)
    first = connection.execute(query.limit(1)).scalar_one()
    found = {
        number
        for some in batches(sorted(wanted))
        for number in connection.execute(query.where(far.in_(some))).scalars()
    }
    return [first, *sorted(found)]


def roles_between(engine: Engine, way: Sequence[str]) -> list[str]:
    """Return the roles along a way of digests from product to ancestor, one fewer than these."""
    query = select(EDGES.c.role).join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making).limit(1)
    with transaction(engine, writes=False) as connection:
        found = numbers(connection, way)
        ids = [found[digest] for digest in way]
        return [
            connection.execute(query.where(MAKINGS.c.entity == made, EDGES.c.input == source)).scalar_one()
            for made, source in itertools.pairwise(ids)
        ]


def shortest_way(engine: Engine, product: str, ancestor: str) -> list[str]:
    """Return the digests on a shortest way from a product to an ancestor, both included; [] where there is none.

    Both ends grow towards each other, always the one with less to look at: the million questions of a dataset are
    read only where no shorter way leads past them.
    """
    with transaction(engine, writes=False) as connection:
        found = numbers(connection, _hex([product, ancestor]))
        if len(found) < 2 - (product == ancestor):
            return []
        ids = _meet(connection, found[product], found[ancestor])
        rows = connection.execute(select(ENTITIES.c.id, ENTITIES.c.digest).where(ENTITIES.c.id.in_(ids)))
        digest_of = {number: digest.hex() for number, digest in rows}
    return [digest_of[number] for number in ids]


def documents_of_files(engine: Engine, file_digests: Iterable[str]) -> dict[str, list[str]]:
    """Return SHA-256 of a file -> digests of the documents made from it, by an edge or by their payload."""
    wanted = set(file_digests)
    found: dict[str, set[str]] = defaultdict(set)
    with transaction(engine, writes=False) as connection:
        files = list(numbers(connection, wanted & set(_hex(wanted))).values())
        edge = select(SOURCE.c.digest, MADE.c.digest).join_from(EDGES, SOURCE, SOURCE.c.id == EDGES.c.input)
        edge = edge.join(MAKINGS, MAKINGS.c.id == EDGES.c.making).join(MADE, MADE.c.id == MAKINGS.c.entity)
        for some in batches(files):
            for file, document in connection.execute(edge.where(EDGES.c.input.in_(some), MADE.c.kind == "document")):
                found[file.hex()].add(document.hex())
        # Documents that were recorded before files had an entry of their own.
        for digest in sorted(wanted - found.keys()):
            query = select(ENTITIES.c.digest, ENTITIES.c.payload)
            query = query.where(ENTITIES.c.kind == "document", ENTITIES.c.payload.contains(digest, autoescape=True))
            for document, payload in connection.execute(query):
                if json.loads(payload).get("source_digest") == digest:
                    found[digest].add(document.hex())
    return {file: sorted(documents) for file, documents in found.items()}


def kinds(engine: Engine) -> Counter[str]:
    """Return how many entries of each kind there are."""
    with transaction(engine, writes=False) as connection:
        rows = connection.execute(select(ENTITIES.c.kind, func.count()).group_by(ENTITIES.c.kind))
        return Counter({kind: count for kind, count in rows})


def _closure(starts: Sequence[int], up: bool) -> Select[Any]:
    near, far = (MAKINGS.c.entity, EDGES.c.input) if up else (EDGES.c.input, MAKINGS.c.entity)
    found = select(ENTITIES.c.id).where(ENTITIES.c.id.in_(starts)).cte("reached", recursive=True)
    step = select(far).join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making).join(found, near == found.c.id)
    found = found.union(step)
    return select(found.c.id)


def _meet(connection: Connection, product: int, ancestor: int) -> list[int]:
    """Return the numbers on a shortest way, [] where there is none."""
    parents: tuple[dict[int, int], dict[int, int]] = ({product: 0}, {ancestor: 0})
    frontiers = [{product}, {ancestor}]
    while not (common := parents[0].keys() & parents[1].keys()) and all(frontiers):
        sizes = [_breadth(connection, frontiers[side], up=not side) for side in (0, 1)]
        side = int(sizes[1] < sizes[0])
        known, frontier = parents[side], set()
        for near, far in _pairs(connection, frontiers[side], up=not side):
            if far not in known:
                known[far] = near
                frontier.add(far)
        frontiers[side] = frontier
    if not common:
        return []
    middle = min(common)
    return [*reversed(_trace(parents[0], middle)), *_trace(parents[1], middle)[1:]]


def _trace(parent_of: dict[int, int], number: int) -> list[int]:
    way = [number]
    while parent_of[way[-1]]:
        way.append(parent_of[way[-1]])
    return way


def _breadth(connection: Connection, frontier: Collection[int], up: bool) -> int:
    near = MAKINGS.c.entity if up else EDGES.c.input
    count = select(func.count()).join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making)
    some = batches(sorted(frontier))
    return sum(int(connection.execute(count.where(near.in_(part))).scalar_one()) for part in some)


def _pairs(
    connection: Connection, frontier: Collection[int], up: bool, role: str | None = None
) -> Iterator[tuple[int, int]]:
    near, far = (MAKINGS.c.entity, EDGES.c.input) if up else (EDGES.c.input, MAKINGS.c.entity)
    query = select(near, far).join_from(EDGES, MAKINGS, MAKINGS.c.id == EDGES.c.making).order_by(near, far)
    query = query if role is None else query.where(EDGES.c.role == role)
    for some in batches(sorted(frontier)):
        yield from ((row[0], row[1]) for row in connection.execute(query.where(near.in_(some))))


def _hex(digests: Iterable[str]) -> list[str]:
    """Return what can be a digest: nothing else is in the registry."""
    return [digest for digest in digests if DIGEST.fullmatch(digest)]
