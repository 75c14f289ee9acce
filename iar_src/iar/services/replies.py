"""Replies of one model, kept as they finish: a killed run goes on with the prompts that are left."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iar.records import EvalItem, Reply, from_json, read_records, to_json, write_records

if TYPE_CHECKING:
    from iar.services.engines import ReplyEngine


def complete_replies(
    path: Path,
    items: Sequence[EvalItem],
    load_engine: "Callable[[], ReplyEngine]",
    known: Iterable[Reply] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Reply]:
    """Return a reply to every item by its id; those missing from `path` and `known` are generated.

    Each finished reply is appended to `path`; a torn last line of a killed run is dropped. At the end the
    file holds the items' replies in the items' order. The model is only loaded where a reply is missing.
    """
    _drop_torn_line(path)
    wanted = {item.id for item in items}
    stored = list(read_records(path, Reply)) if path.is_file() else []
    replies = {reply.item_id: reply for reply in (*known, *stored) if reply.item_id in wanted}
    missing = [item for item in items if item.id not in replies]
    if missing:
        _generate(path, missing, load_engine(), replies, on_progress)
    write_records(path, (replies[item.id] for item in items))
    return replies


def _generate(
    path: Path,
    missing: Sequence[EvalItem],
    engine: "ReplyEngine",
    replies: dict[str, Reply],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    total = len(replies) + len(missing)
    with path.open("a", encoding="utf-8") as file:
        for reply in engine.generate(missing):
            file.write(json.dumps(to_json(reply), ensure_ascii=False) + "\n")
            file.flush()
            replies[reply.item_id] = reply
            if on_progress:
                on_progress(len(replies), total)


def _drop_torn_line(path: Path) -> None:
    """Cut a file back to its last complete JSON line."""
    if not path.is_file():
        return
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete and not _is_reply(complete.splitlines()[-1]):
        complete = complete[: complete.rstrip(b"\n").rfind(b"\n") + 1]
    if complete != content:
        path.write_bytes(complete)


def _is_reply(line: bytes) -> bool:
    try:
        from_json(Reply, json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True
