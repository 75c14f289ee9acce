"""Answers that are no tree of entries as one: what was asked about, and below it a row for each part of the answer."""

from collections.abc import Iterable
from typing import Any

from iar.records import Lineage
from iar.services.lineage import Row
from iar.services.lineage_diff import Difference
from iar.services.lineage_questions import Coverage, Use
from iar.services.registry import short_id


def uses_rows(entry: Lineage, uses: Iterable[Use]) -> list[Row]:
    """Return an entry, and what each use of it made; a use that failed made nothing."""
    below = (
        Row(1, one.role, one.id.partition(":")[0], f"{one.name}, {one.stage} of {one.run_id}", one.id)
        if one.id
        else Row(1, one.role, f"nothing, {one.status}", f"{one.stage} of {one.run_id}", "")
        for one in uses
    )
    return [_root(entry), *below]


def diff_rows(first: str, second: str, differences: Iterable[Difference]) -> list[Row]:
    """Return the two that were compared, and each difference with its reason."""
    below = (Row(1, one.change, one.item.partition(":")[0], one.why, one.item) for one in differences)
    return [Row(0, "", "diff", f"{first} and {second}", ""), *below]


def coverage_rows(entry: Lineage, found: Coverage) -> list[Row]:
    """Return a dataset, the chunks nothing was asked about, the pairs nobody certified, and the certifiers of all."""
    rows = [_root(entry)]
    rows += [Row(1, "without a question", "chunk", "", id_) for id_ in found.unasked]
    rows += [Row(1, "without a certifier", "qa", "", id_) for id_ in found.uncertified]
    return rows + [Row(1, "certified-by", "agent", name, id_) for id_, name in found.certifiers.items()]


def recipe_rows(recipe: dict[str, Any]) -> list[Row]:
    """Return an entry and the activities behind it in their order, each with how it comes out the same."""
    kind = str(recipe["id"]).partition(":")[0]
    below = (
        Row(1, f"step {number}", one["stage"], f"{one['how']}; {one['stage']} of {one['run_id']}", one["id"][:12])
        for number, one in enumerate(recipe["activities"], 1)
    )
    return [Row(0, "", kind, recipe["name"], recipe["id"]), *below]


def _root(entry: Lineage) -> Row:
    return Row(0, "", entry.kind, entry.name, short_id(entry.kind, entry.digest))
