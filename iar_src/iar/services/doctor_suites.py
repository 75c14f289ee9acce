"""Where the prompts of the suites are: in files here, or on the hub at which commit."""

from pathlib import Path

from iar.config import RunFile
from iar.services.evaluations import GENERAL
from iar.services.findings import Check
from iar.services.hub_commits import look_up, repository, stand_in
from iar.services.source_rows import hub_place
from iar.services.user_suites import user_items
from iar.services.workspace import Workspace


def check_suites(run_file: RunFile) -> Check:
    """Find the files of the general suites, and read those of the user; what is on the hub is only looked up."""
    remote = []
    for name in GENERAL:
        place = getattr(run_file.evaluate, name)
        if Path(place).is_file():
            continue
        if hub_place(place) is None:
            detail = f"evaluate.{name}: {place!r} is no file here and no hub id"
            return Check("suites", "fail", detail, "run from the repository's root, or give the file's full path")
        remote.append(name)
    own = [user_items(Path(place), run_file.evaluate.day)[0].suite for place in run_file.evaluate.suites]
    if remote:
        return _on_hub(run_file, remote)
    return Check("suites", "pass", f"{', '.join([*GENERAL, *own])} are here")


def _on_hub(run_file: RunFile, names: list[str]) -> Check:
    """Say which commits will be read; where the hub does not answer, what stands in for it."""
    state = Workspace.of(run_file).state
    places = [getattr(run_file.evaluate, name) for name in names]
    found = [repo for name in names if (repo := repository(run_file, f"evaluate.{name}"))]
    seen = [(repo, look_up(repo, state)) for repo in found]
    detail = "; ".join(
        [
            f"{', '.join(places)} will be fetched from the hub",
            *(stand_in(repo, one) for repo, one in seen if one.commit and one.problem),
            *(f"{repo.key}: {repo.id} at {repo.revision}: {one.problem}" for repo, one in seen if not one.commit),
        ]
    )
    pinned = [f"{repo.key} to {repo.id}@{one.commit}" for repo, one in seen if one.commit]
    fix = f"set {', '.join(pinned)} to be sure of the same prompts" if pinned else "download them before, to be sure"
    return Check("suites", "warn", detail, fix)
