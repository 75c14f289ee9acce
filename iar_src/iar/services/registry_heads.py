"""Where the registry's chains ended, kept apart from the database: by this an older copy of it is told from it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iar.services.registry import Registry

HEADS = "registry-heads.jsonl"


def keep_head(state: Path, registry: "Registry") -> None:
    """Append the registry's head to a file of the state folder, apart from the database that it vouches for."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / HEADS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"head": registry.head()}) + "\n")


def kept_heads(state: Path) -> list[str]:
    """Return the heads that were kept in a state folder; a line torn by a kill says nothing."""
    path = state / HEADS
    heads = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            heads.append(str(json.loads(line)["head"]))
        except (ValueError, KeyError, TypeError):
            continue
    return heads
