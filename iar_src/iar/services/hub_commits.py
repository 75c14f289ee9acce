"""The commit that a branch of a hub repository is at: part of a stage's key, so that a branch that moved is read anew.

The commit last seen is kept in the state folder. Where the hub does not answer it stands in for the one of today, so
that what was made of it is found.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from iar.config import RunFile
from iar.records import write_json
from iar.services.source_rows import HUB_ID, hub_place

FOLDER = "hub-commits"
TIMEOUT_SECONDS = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """A repository of the hub at a revision, and where the run file names it; `kind` is model or dataset."""

    key: str
    kind: str
    id: str
    revision: str


@dataclass(frozen=True)
class Seen:
    """The commit of a repository, "" where none is known, and why it is not the hub's answer of now, "" where it is."""

    commit: str
    problem: str = ""


# The key that names a repository, its kind, and the key of its revision in the same section, "" where that stands after
# the id: org/name@revision.
PLACES = {
    "documents.path": ("dataset", "revision"),
    "model.source": ("model", "revision"),
    "baselines.cpt_model": ("model", "cpt_revision"),
    "baselines.replay_data": ("dataset", ""),
    "evaluate.ifeval": ("dataset", ""),
    "evaluate.mmlu": ("dataset", ""),
    "evaluate.msbench": ("dataset", ""),
}


def repository(run_file: RunFile, key: str) -> Repository | None:
    """Return the repository that a key of the run file names; None for a folder, a file, another name, or a commit."""
    section, _, name = key.partition(".")
    kind, revision_name = PLACES[key]
    settings = getattr(run_file, section)
    place = getattr(settings, name)
    named = (place, getattr(settings, revision_name)) if revision_name else hub_place(place)
    if named is None or not HUB_ID.fullmatch(named[0]) or Path(place).exists() or _COMMIT.fullmatch(named[1]):
        return None
    return Repository(key, kind, *named)


def look_up(repo: Repository, state: Path) -> Seen:
    """Ask the hub for the commit; where it does not answer, take the one last seen here, or that of its own cache."""
    memory = state / FOLDER / f"{repo.kind}s--{quote(repo.id, safe='')}--{quote(repo.revision, safe='')}.json"
    try:
        commit = ask_hub(repo.kind, repo.id, repo.revision)
    except Unanswered as error:
        known = json.loads(memory.read_text(encoding="utf-8"))["commit"] if memory.is_file() else _cached(repo)
        return Seen(known, str(error))
    if not memory.is_file() or json.loads(memory.read_text(encoding="utf-8"))["commit"] != commit:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, {"commit": commit})
    return Seen(commit)


def pin(
    run_file: RunFile, keys: Iterable[str], state: Path, settled: Mapping[str, str]
) -> tuple[RunFile, dict[str, str], list[str]]:
    """Return the run file with a commit in place of each branch that `keys` name, those commits by key, and a line for
    each that is not the hub's answer of now. What has no commit stays as it is: reading it says what is wrong.

    `settled`: commits by key that a stage before this one has read. They stay, so that all stages of a run read the
    same, whatever becomes of the branch meanwhile.
    """
    commits: dict[str, str] = {}
    lines: list[str] = []
    for repo in (found for key in keys if (found := repository(run_file, key))):
        seen = Seen(settled[repo.key]) if repo.key in settled else look_up(repo, state)
        if seen.commit:
            commits[repo.key] = seen.commit
            run_file = _at(run_file, repo, seen.commit)
        if seen.commit and seen.problem:
            lines.append(stand_in(repo, seen))
    return run_file, commits, lines


def _at(run_file: RunFile, repo: Repository, commit: str) -> RunFile:
    """Return the run file with the commit in place of the repository's branch."""
    section, _, name = repo.key.partition(".")
    revision_name = PLACES[repo.key][1]
    change = {revision_name: commit} if revision_name else {name: f"{repo.id}@{commit}"}
    changed = getattr(run_file, section).model_copy(update=change)
    return run_file.model_copy(update={section: changed})


def stand_in(repo: Repository, seen: Seen) -> str:
    """Say in one line that an earlier commit is taken."""
    return (
        f"{repo.key}: the hub does not say where {repo.id} is at {repo.revision} now ({seen.problem}); its commit "
        f"{seen.commit[:12]}, last seen here, is taken"
    )


class Unanswered(Exception):
    """The hub gave no commit."""


def ask_hub(kind: str, hub_id: str, revision: str) -> str:
    """Return the commit that a revision of a model or dataset is now. Raises Unanswered with the reason."""
    # The client's HTTP library is another one by its version; it names it `httpx`.
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    api = HfApi()
    ask = api.dataset_info if kind == "dataset" else api.model_info
    try:
        commit = str(ask(hub_id, revision=revision, timeout=TIMEOUT_SECONDS).sha)
    # Off line is an OSError, what the hub refuses too; an id that it cannot have is a ValueError, as is no JSON.
    except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise Unanswered(reason) from error
    if not _COMMIT.fullmatch(commit):
        raise Unanswered("its answer names no commit")
    return commit


def _cached(repo: Repository) -> str:
    """Return the commit in the hub's own cache, "" where it has none."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo.id, repo_type=repo.kind)
    ref = folder / "refs" / repo.revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else ""
    return commit if _COMMIT.fullmatch(commit) else ""
