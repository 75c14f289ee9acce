"""Where the registry's chains ended, kept apart from the database: by this an older copy of it is told from it.

Heads stand in a file of the state folder, and as tags of MLflow's runs and versions. MLflow may serve several
registries, so a tag names the origin too, the first recording: a head of another registry says nothing of this one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iar.config import RunFile
    from iar.services.registry import Registry

HEADS = "registry-heads.jsonl"
HEAD_TAG = "iar.registry_head"
ORIGIN = "origin:"


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


def head_tag(registry: "Registry") -> dict[str, str]:
    """Return the tag that vouches for a registry in MLflow: its origin and its head."""
    return {HEAD_TAG: f"{ORIGIN}{registry.origin()} {registry.head()}"}


def heads_in(tags: Iterable[str], registry: "Registry") -> list[str]:
    """Return the heads in tags of this registry or of a copy of it."""
    own = f"{ORIGIN}{registry.origin()} "
    return [tag.removeprefix(own) for tag in tags if tag.startswith(own)]


def tracked_heads(run_file: "RunFile", state: Path, registry: "Registry") -> list[str]:
    """Return the heads that MLflow's runs and versions of a run have; nothing is made there.

    Raises TemporaryError where the server fails.
    """
    from iar.services.tracking import LOCAL_DATABASE, Tracker

    if not run_file.register.tracking_uri and not (state / LOCAL_DATABASE).is_file():
        return []
    return heads_in(Tracker(run_file, run_file.run_id, state).tag_values(HEAD_TAG), registry)
