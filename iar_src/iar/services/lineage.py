"""Lineage as a tree of rows: the way from an entry to its documents, or from a document to the models."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, select

from iar.errors import UserError
from iar.services.database import transaction
from iar.services.registry import Registry, short_id
from iar.services.registry_schema import ENTITIES
from iar.services.registry_walk import among, named, roles_between, shortest_way, steps
from iar.services.registry_write import batches, numbers
from iar.services.retraction import retracted_entries

SHOWN_SIBLINGS = 20
FOLLOWED = 20_000


class Row(NamedTuple):
    """One line of the tree. A row that stands for several entries has no `id`, and their number as its name.

    retracted: the reason of the entry's own retraction, "" where there is none.
    """

    depth: int
    role: str
    kind: str
    name: str
    id: str
    retracted: str = ""


class _Node(NamedTuple):
    """An entry by its number; `size` > 1 where it stands for so many that are not followed."""

    role: str
    number: int
    size: int = 1


@dataclass(frozen=True)
class _Known:
    """(kind, name, digest) of entries by number, and the reasons of those that are retracted."""

    labels: dict[int, tuple[str, str, str]]
    retracted: dict[int, str]


def render_upstream(registry: Registry, digest: str, shown: int | None = SHOWN_SIBLINGS) -> list[Row]:
    """Return what `digest` was made from, down to the sources, each entry once, nearest place first.

    More than `shown` entries of one kind and role side by side become one row (None: never); more than FOLLOWED beside
    one entry are counted, and what they were made from is not looked for.
    """
    return _render(registry, digest, shown, up=True)


def render_downstream(registry: Registry, digest: str, shown: int | None = SHOWN_SIBLINGS) -> list[Row]:
    """Return what was made from `digest`, directly or not, in the same form as render_upstream."""
    return _render(registry, digest, shown, up=False)


def list_kind(registry: Registry, digest: str, kind: str, up: bool) -> list[Row]:
    """Return an entry, and below it every entry of a kind that it was made from, or that was made from it, by name.

    Raises UserError for a kind that the registry has none of.
    """
    if kind not in (known := registry.kinds()):
        raise UserError(f"--kind {kind!r}: the registry has none; it has {', '.join(sorted(known))}")
    retracted = retracted_entries(registry)
    ((own, name),) = registry.labels([digest]).values()
    found = [(digest, own, name, 0), *((one, kind, name, 1) for one, name in named(registry.engine, digest, up, kind))]
    return [Row(depth, "", of, name, short_id(of, one), retracted.get(one, "")) for one, of, name, depth in found]


def render_way(registry: Registry, product: str, ancestor: str) -> list[Row]:
    """Return a shortest way from a product down to an ancestor, a row an entry; [] where there is none."""
    way = shortest_way(registry.engine, product, ancestor)
    if not way:
        return []
    labels, retracted = registry.labels(way), retracted_entries(registry)
    rows = []
    for depth, (digest, role) in enumerate(zip(way, ["", *roles_between(registry.engine, way)], strict=True)):
        kind, name = labels[digest]
        rows.append(Row(depth, role, kind, name, short_id(kind, digest), retracted.get(digest, "")))
    return rows


def way_up(registry: Registry, product: str, ancestor: str) -> str:
    """Return a shortest way from a product to an ancestor in one line: `checkpoint:3f9a01bc77de <- ... (name)`."""
    rows = render_way(registry, product, ancestor)
    return " <- ".join(row.id for row in rows) + f" ({rows[-1].name})" * bool(rows[-1].name)


def format_rows(rows: Iterable[Row]) -> str:
    """Return rows as indented text, one line a row."""
    return "\n".join(_line(row) for row in rows)


def format_dot(rows: Iterable[Row]) -> str:
    """Return rows as a graph for Graphviz; an arrow leads from what a row is below to the row, and names its role."""
    lines = ["digraph lineage {", "  rankdir=LR; node [shape=box, fontname=sans-serif];"]
    above: list[int] = []
    for number, row in enumerate(rows):
        colour = ", color=red" * bool(row.retracted)
        told = [row.id or row.kind, row.name, f"retracted: {row.retracted}" * bool(row.retracted)]
        label = "\\n".join(_quoted(part) for part in told if part)
        lines.append(f'  n{number} [label="{label}"{colour}];')
        above = [*above[: row.depth], number]
        if row.depth:
            lines.append(f'  n{above[row.depth - 1]} -> n{number} [label="{_quoted(row.role)}"];')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    """Return text as it may stand between double quotes in DOT; names are whatever a document is called."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown.replace("\\", "\\\\").replace('"', '\\"')


def _render(registry: Registry, digest: str, shown: int | None, up: bool) -> list[Row]:
    reasons = retracted_entries(registry)
    with transaction(registry.engine, writes=False) as connection:
        root = numbers(connection, [digest])[digest]
        retracted = {number: reasons[one] for one, number in numbers(connection, reasons).items()}
        children = _spanning_tree(connection, root, up, FOLLOWED if shown is not None else sys.maxsize, set(retracted))
        members = {node.number for nodes in children.values() for node in nodes} | {root}
        known = _Known(_labels(connection, members), retracted)
    return list(_rows(root, children, known, shown))


def _labels(connection: Connection, members: Iterable[int]) -> dict[int, tuple[str, str, str]]:
    query = select(ENTITIES.c.id, ENTITIES.c.kind, ENTITIES.c.name, ENTITIES.c.digest)
    return {
        number: (kind, name, digest.hex())
        for some in batches(sorted(members))
        for number, kind, name, digest in connection.execute(query.where(ENTITIES.c.id.in_(some)))
    }


def _spanning_tree(
    connection: Connection, root: int, up: bool, most: int, retracted: set[int]
) -> dict[int, list[_Node]]:
    """Return parent -> children so that each entry has one parent, on a shortest way from the root.

    Of a group that is too large, one node stands for all, and what is retracted among them for itself.
    """
    children: dict[int, list[_Node]] = defaultdict(list)
    seen, frontier = {root}, {root}
    while frontier:
        reached: set[int] = set()
        for step in sorted(steps(connection, frontier, up, most)):
            if not step.members:
                first, *marked = among(connection, step.near, step.role, up, retracted)
                children[step.near] += [_Node(step.role, number) for number in marked if number not in seen]
                children[step.near].append(_Node(step.role, first, step.size))
                seen |= set(marked)
            fresh = [number for number in step.members if number not in seen]
            children[step.near] += [_Node(step.role, number) for number in fresh]
            seen |= set(fresh)
            reached |= set(fresh)
        frontier = reached
    return children


def _rows(root: int, children: dict[int, list[_Node]], known: _Known, shown: int | None) -> Iterator[Row]:
    waiting = [(0, [_Node("", root)])]
    while waiting:
        depth, members = waiting.pop()
        first = members[0]
        kind, name, digest = known.labels[first.number]
        if first.size > 1:
            yield Row(depth, first.role, kind, f"{first.size} entries, not followed; --all lists them", "")
            continue
        if len(members) == 1:
            yield Row(depth, first.role, kind, name, short_id(kind, digest), known.retracted.get(first.number, ""))
        else:
            yield Row(depth, first.role, kind, f"{len(members)} entries", "")
        below = [node for member in members for node in children.get(member.number, ())]
        waiting += [(depth + 1, group) for group in reversed(_groups(below, known, shown))]


def _groups(nodes: list[_Node], known: _Known, shown: int | None) -> list[list[_Node]]:
    """Return nodes by role, kind and name; more than `shown` of one role and kind form one group.

    What is retracted stands alone, before the others; what already stands for many stands alone too.
    """
    alike: dict[tuple[str, str], list[_Node]] = defaultdict(list)
    groups: list[list[_Node]] = []
    many: list[list[_Node]] = []
    for node in sorted(nodes, key=lambda node: known.labels[node.number][1:]):
        if node.size > 1:
            many.append([node])
        elif node.number in known.retracted:
            groups.append([node])
        else:
            alike[node.role, known.labels[node.number][0]].append(node)
    for _, members in sorted(alike.items()):
        groups += [members] if shown is not None and len(members) > shown else [[node] for node in members]
    return groups + many


def _line(row: Row) -> str:
    text = f"{row.id}  {row.name}".rstrip() if row.id else f"{row.kind}: {row.name}"
    text += f"  [retracted: {row.retracted}]" * bool(row.retracted)
    return "  " * row.depth + (f"{row.role}: " if row.role else "") + text
