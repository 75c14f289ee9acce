"""The lineage page beside the report: what the pick was made from, as nested lists that load and run nothing."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from iar.report.html import FOLDER, environment

if TYPE_CHECKING:
    from iar.services.lineage import Row

PAGE = "lineage.html"
MOST_ROWS = 1000


@dataclass
class Node:
    """A row of the tree with the rows below it."""

    row: "Row"
    below: list["Node"] = field(default_factory=list)


def write_lineage_page(out: Path, rows: "Sequence[Row]", run_id: str) -> Path:
    """Write `lineage.html` under `out`; of more than MOST_ROWS rows it says how many are left out."""
    from markupsafe import Markup

    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    text = environment().get_template("lineage.html.j2").render(
        run_id=run_id,
        nodes=tree(rows[:MOST_ROWS]),
        left_out=max(0, len(rows) - MOST_ROWS),
        root=rows[0].id,
        style=Markup(style),
        style_hash=b64encode(sha256(style.encode()).digest()).decode(),
    )  # fmt: skip
    page = out / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def tree(rows: "Sequence[Row]") -> list[Node]:
    """Return rows in the order of the tree, each deeper by one at most than the one before, as nodes."""
    top: list[Node] = []
    above: list[Node] = []
    for row in rows:
        node = Node(row)
        (above[row.depth - 1].below if row.depth else top).append(node)
        above = [*above[: row.depth], node]
    return top
