"""Jobs that a run left behind: their launcher could not end them, and they keep their GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from iar.errors import IarError, UserError
from iar.methods.job_spec import KINDS, MANAGED_BY, MANAGER, RUN_LABEL, Manifest, state_of
from iar.services.findings import Check

WORKFLOWS = "argoproj.io"
ENDED = ("Succeeded", "Failed", "Error")


class Api(Protocol):
    """The Kubernetes API as the preflight reaches it."""

    namespace: str

    def items(self, path: str) -> list[Manifest]:
        """Return the items of the list at a path."""

    def served(self, group: str) -> list[str]:
        """Return the versions of an API group; [] where the cluster does not have it."""

    def delete(self, path: str, preconditions: dict[str, Any]) -> None:
        """Delete what is at a path, its dependents first, if it is still as the preconditions say."""


@dataclass(frozen=True)
class Orphan:
    """A job of ours whose run is gone or has ended. `path` is its place in the API, `seen` what it then was."""

    path: str
    seen: dict[str, Any]
    detail: str


def check_orphans(api: Api, reap: bool) -> Iterator[Check]:
    """Yield a finding for each orphan, one for none; with `reap` each is deleted. Raises nothing."""
    fix = "iar doctor --cluster --reap removes it"
    try:
        found = list(orphans(api))
    except IarError as error:
        yield Check("orphans", "fail" if reap else "warn", str(error), "ask who may list jobs and workflows here")
        return
    if not found:
        yield Check("orphans", "pass", f"no job without its run in namespace {api.namespace}")
    for orphan in found:
        if not reap:
            yield Check("orphans", "warn", orphan.detail, fix)
            continue
        try:
            api.delete(orphan.path, orphan.seen)
            yield Check("orphans", "pass", f"{orphan.detail}: deleted")
        except IarError as error:
            yield Check("orphans", "fail", f"{orphan.detail}: {error}", "look at it, then repeat")


def orphans(api: Api) -> Iterator[Orphan]:
    """Yield the jobs that carry our label and that of a run which no workflow carries out any more.

    A job without a run's label was made by hand and is nobody's orphan. One that has ended holds no GPUs: its object is
    kept for whoever wants to look, and for a task that starts again to find the training done.
    """
    ours = [(path, job) for path, job in _ours(api) if state_of(job) in ("waiting", "running")]
    if ours and "v1alpha1" not in api.served(WORKFLOWS):
        raise UserError("the cluster has no Argo workflows, so which runs go on cannot be known")
    phases: dict[str, list[str]] = {}
    for path, job in ours:
        about = job["metadata"]
        run = about["labels"][RUN_LABEL]
        if run not in phases:
            phases[run] = _phases(api, run)
        if all(phase in ENDED for phase in phases[run]):
            fate = f"has ended ({phases[run][0]})" if phases[run] else "is gone"
            detail = f"{job['kind']} {about['name']} ({state_of(job)}): its run {run} {fate}"
            seen = {key: about[key] for key in ("uid", "resourceVersion") if key in about}
            yield Orphan(f"{path}/{about['name']}", seen, detail)


def _ours(api: Api) -> Iterator[tuple[str, Manifest]]:
    for kind in KINDS.values():
        if kind.version not in api.served(kind.group):
            continue
        path = f"/apis/{kind.group}/{kind.version}/namespaces/{api.namespace}/{kind.plural}"
        for job in api.items(f"{path}?labelSelector={MANAGED_BY}%3D{MANAGER}"):
            labels = job["metadata"].get("labels") or {}
            if labels.get(MANAGED_BY) == MANAGER and labels.get(RUN_LABEL):
                yield path, {"kind": kind.kind} | job


def _phases(api: Api, run: str) -> list[str]:
    """Return where the workflows of a run stand; "" for one that has not begun."""
    path = f"/apis/{WORKFLOWS}/v1alpha1/namespaces/{api.namespace}/workflows"
    found = api.items(f"{path}?labelSelector={RUN_LABEL}%3D{run}")
    mine = [one for one in found if (one["metadata"].get("labels") or {}).get(RUN_LABEL) == run]
    return [(one.get("status") or {}).get("phase", "") for one in mine]
