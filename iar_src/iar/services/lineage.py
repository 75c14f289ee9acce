"""Lineage as a tree of rows: the way from an entry to its documents, or from a document to the models."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from iar.services.registry import Edge, Registry, short_id
from iar.services.retraction import retracted_entries

SHOWN_SIBLINGS = 20
UNRECORDED = ("unrecorded", "")


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
    role: str
    digest: str


class _Known(NamedTuple):
    """(kind, name) of entries by digest, and the reasons of those that are retracted."""

    labels: dict[str, tuple[str, str]]
    retracted: dict[str, str]

    def label(self, digest: str) -> tuple[str, str]:
        """Return kind and name of an entry."""
        return self.labels.get(digest, UNRECORDED)


def render_upstream(registry: Registry, digest: str, shown: int | None = SHOWN_SIBLINGS) -> list[Row]:
    """Return what `digest` was made from, down to the sources, each entry once, nearest place first.

    More than `shown` entries of one kind and role side by side become one row (None: never).
    """
    edges = registry.upstream(digest)
    return _render(registry, digest, ((edge.product, _Node(edge.role, edge.input)) for edge in edges), shown)


def render_downstream(registry: Registry, digest: str, shown: int | None = SHOWN_SIBLINGS) -> list[Row]:
    """Return what was made from `digest`, directly or not, in the same form as render_upstream."""
    edges = registry.downstream(digest)
    return _render(registry, digest, ((edge.input, _Node(edge.role, edge.product)) for edge in edges), shown)


def way_up(registry: Registry, edges: Iterable[Edge], product: str, ancestor: str) -> str:
    """Return a shortest way from a product to an ancestor in one line: `checkpoint:3f9a01bc77de <- ... (name)`.

    `edges` are those upstream of the product.
    """
    children = _spanning_tree(product, ((edge.product, _Node(edge.role, edge.input)) for edge in edges))
    parent_of = {node.digest: parent for parent, nodes in children.items() for node in nodes}
    way = [ancestor]
    while way[0] != product:
        way.insert(0, parent_of[way[0]])
    labels = registry.labels(way)
    name = labels.get(ancestor, UNRECORDED)[1]
    return " <- ".join(short_id(labels.get(digest, UNRECORDED)[0], digest) for digest in way) + f" ({name})" * bool(
        name
    )


def format_rows(rows: Iterable[Row]) -> str:
    """Return rows as indented text, one line a row."""
    return "\n".join(_line(row) for row in rows)


def _render(registry: Registry, root: str, links: Iterable[tuple[str, _Node]], shown: int | None) -> list[Row]:
    children = _spanning_tree(root, links)
    digests = {node.digest for nodes in children.values() for node in nodes}
    return list(_rows(root, children, _Known(registry.labels(digests | {root}), retracted_entries(registry)), shown))


def _spanning_tree(root: str, links: Iterable[tuple[str, _Node]]) -> dict[str, list[_Node]]:
    """Return parent -> children so that each entry has one parent, on a shortest way from the root."""
    neighbours: dict[str, list[_Node]] = defaultdict(list)
    for parent, node in links:
        neighbours[parent].append(node)
    children: dict[str, list[_Node]] = defaultdict(list)
    seen, waiting = {root}, deque([root])
    while waiting:
        parent = waiting.popleft()
        for node in neighbours[parent]:
            if node.digest not in seen:
                seen.add(node.digest)
                waiting.append(node.digest)
                children[parent].append(node)
    return children


def _rows(root: str, children: dict[str, list[_Node]], known: _Known, shown: int | None) -> Iterator[Row]:
    waiting = [(0, [_Node("", root)])]
    while waiting:
        depth, members = waiting.pop()
        digest = members[0].digest
        kind, name = known.label(digest)
        if len(members) == 1:
            yield Row(depth, members[0].role, kind, name, short_id(kind, digest), known.retracted.get(digest, ""))
        else:
            yield Row(depth, members[0].role, kind, f"{len(members)} entries", "")
        below = [node for member in members for node in children.get(member.digest, ())]
        waiting += [(depth + 1, group) for group in reversed(_groups(below, known, shown))]


def _groups(nodes: list[_Node], known: _Known, shown: int | None) -> list[list[_Node]]:
    """Return nodes by role, kind and name; more than `shown` of one role and kind form one group.

    What is retracted stands alone, before the others.
    """
    alike: dict[tuple[str, str], list[_Node]] = defaultdict(list)
    groups: list[list[_Node]] = []
    for node in sorted(nodes, key=lambda node: (known.label(node.digest)[1], node.digest)):
        if node.digest in known.retracted:
            groups.append([node])
        else:
            alike[node.role, known.label(node.digest)[0]].append(node)
    for _, members in sorted(alike.items()):
        groups += [members] if shown is not None and len(members) > shown else [[node] for node in members]
    return groups


def _line(row: Row) -> str:
    text = f"{row.id}  {row.name}".rstrip() if row.id else f"{row.kind}: {row.name}"
    text += f"  [retracted: {row.retracted}]" * bool(row.retracted)
    return "  " * row.depth + (f"{row.role}: " if row.role else "") + text
