"""Promotion: the model of a finished run passes its gates, then the serving alias moves to it by compare-and-set.

MLflow sets an alias wherever it stood, so the registry's events decide between writers and are the history;
the alias follows them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from iar.config import RunFile, check_alias
from iar.errors import UserError
from iar.methods.digest import digest_json
from iar.records import Lineage, TestReading
from iar.services.deeds import DECIDED_BY, Deed, said
from iar.services.finalist import Finalist, finalist, registered_artifact
from iar.services.findings import Check, guarded
from iar.services.model_versions import ModelVersions
from iar.services.promotion_gates import check_retraction, check_storage, gates, model_files
from iar.services.registry import PROMOTE, ROLLBACK, Event, Registry
from iar.services.registry_heads import head_tag
from iar.services.serving import storage_uri
from iar.services.test_lock import TAKEN_BEFORE, reading_of
from iar.services.tracking import Tracker
from iar.services.workspace import Workspace

NONE = "none"


@dataclass(frozen=True)
class Promotion:
    """Where an alias stands after a command, and the findings that let it. `before` is "" for a new alias.

    `storage` is where a cluster finds the version's files, "" where it was not asked for.
    """

    model: str
    alias: str
    version: str
    before: str
    run_id: str
    gates: tuple[Check, ...]
    storage: str = ""


def promote(
    run_file: RunFile, alias: str, expect: str | None = None, test_reused: bool = False, serve: bool = False,
    by: str = "",
) -> Promotion:  # fmt: skip
    """Let `alias` point at the model of a finished run. Nothing happens where it does already.

    `expect` is the version that the alias must stand at now ("none" = the alias is new); without it the one in the
    history. With `serve` a cluster must be able to read the version's files. `by` is the person who decides, "" where
    nobody is named. Raises UserError with every gate that failed, one a line, and where another writer was faster.
    """
    options = {"alias": alias, "expect": expect, "test_reused": test_reused, "serve": serve}
    deed = _deed(PROMOTE, run_file, options, by)
    one = finalist(run_file)
    with _opened(run_file, alias) as move:
        content = digest_json(model_files(one))
        version = move.versions.holding(content)
        findings = tuple(gates(one, version, move.versions, move.registry, test_reused))
        storage = storage_uri(run_file, move.versions.source(version), one.artifacts["register"]) if serve else ""
        _refuse((*findings, *check_storage(storage, serve)))
        before = move.check(expect)
        move.versions.tag(version, _tags(one, findings, reading_of(one.decision, move.registry)))
        if move.standing != version:
            moved = {"version": version, "run_id": run_file.run_id, "files": content, "lineage": one.lineage}
            move.record(PROMOTE, moved)
        move.enter(deed, findings, one.decision)
        move.settle()
        move.versions.tag(version, head_tag(move.registry))
    return Promotion(move.versions.name, alias, version, before, run_file.run_id, findings, storage)


def rollback(run_file: RunFile, alias: str, expect: str | None = None, serve: bool = False, by: str = "") -> Promotion:
    """Let `alias` point at what it pointed at before its last promotion. Raises UserError where there is no such."""
    deed = _deed(ROLLBACK, run_file, {"alias": alias, "expect": expect, "serve": serve}, by)
    if not history(run_file, alias):
        raise UserError(f"{run_file.register.model_name}@{alias}: no promotion to go back to; see --history")
    with _opened(run_file, alias) as move:
        before = move.check(expect)
        stack = standing_promotions(move.events)
        if len(stack) < 2:
            raise UserError(f"{move.versions.name}@{alias}: no promotion to go back to; see --history")
        target = stack[-2]
        version = str(target["version"])
        tags = move.versions.tags(version)
        findings = (
            *guarded("retraction", lambda: check_retraction(tags["iar.lineage"], move.registry)),
            *guarded("files", lambda: _check_unchanged(version, target["files"], move.versions)),
        )
        storage = ""
        if serve:
            registered = registered_artifact(run_file, target["run_id"])
            storage = storage_uri(run_file, move.versions.source(version), registered)
        _refuse((*findings, *check_storage(storage, serve)))
        move.record(ROLLBACK, target | {"lineage": tags["iar.lineage"]})
        move.enter(deed, findings)
        move.settle()
        move.versions.tag(version, head_tag(move.registry))
    return Promotion(move.versions.name, alias, version, before, target["run_id"], findings, storage)


def history(run_file: RunFile, alias: str) -> list[dict[str, Any]]:
    """Return every move of the alias in order: time (Unix), kind, version, before and run_id.

    [] where there is no registry yet; none is made.
    """
    _require_alias(alias)
    registry = Registry.open_to_read(_registry_url(run_file))
    if registry is None:
        return []
    try:
        events = registry.events(f"{run_file.register.model_name}@{alias}")
    finally:
        registry.close()
    return [{"time": event.time, "kind": event.kind} | event.payload for event in events]


def standing_promotions(events: list[Event]) -> list[dict[str, Any]]:
    """Return the promotions that no rollback took back, oldest first: the last is in force."""
    stack: list[dict[str, Any]] = []
    for event in events:
        if event.kind == ROLLBACK:
            stack.pop()
        else:
            stack.append(event.payload)
    return stack


class _Move:
    """One look at an alias, and at most one change of it."""

    def __init__(self, registry: Registry, versions: ModelVersions, alias: str) -> None:
        self.registry, self.versions, self._alias = registry, versions, alias
        self._subject = f"{versions.name}@{alias}"
        self.events = registry.events(self._subject)
        self.moved = self.events[-1] if self.events else None

    @property
    def standing(self) -> str:
        """The version of the history's last move, "" before the first."""
        return str(self.events[-1].payload["version"]) if self.events else ""

    def check(self, expect: str | None) -> str:
        """Return where the alias stands. Raises UserError where that is neither expected nor in the history."""
        now = self.versions.alias(self._alias)
        if expect is not None:
            allowed = {"" if expect == NONE else expect}
        else:
            # A promotion killed between history and alias left it where it was before.
            allowed = {self.standing} | ({str(self.events[-1].payload["before"])} if self.events else set())
        if now not in allowed:
            wanted = " or ".join(sorted(version or NONE for version in allowed))
            raise UserError(
                f"{self._subject} stands at version {now or NONE}, expected {wanted}; "
                f"if it shall move from there, give --expect {now or NONE}"
            )
        return now

    def record(self, kind: str, payload: dict[str, Any]) -> None:
        """Append the move to the history. Raises UserError where another writer was faster."""
        last = self.events[-1].digest if self.events else ""
        moved = {name: payload[name] for name in ("version", "run_id", "files", "lineage")} | {"before": self.standing}
        recorded = self.registry.event_after(last, kind, self._subject, moved)
        seen, self.events = len(self.events), self.registry.events(self._subject)
        self.moved = self.events[seen]
        if not recorded:
            winner = self.events[-1].payload
            raise UserError(
                f"{self._subject}: meanwhile moved to version {winner['version']} of {winner['run_id']}; "
                "look at that one, then repeat"
            )

    def enter(self, deed: Deed, findings: tuple[Check, ...], decision: str = "") -> None:
        """Enter the last move that was seen as something made from its model; what a kill left out, the next enters."""
        assert self.moved is not None
        payload = self.moved.payload | {"alias": self._subject, "event": self.moved.digest}
        gates = {check.name: check.status for check in findings}
        made_of = (("promotes", str(payload["lineage"])), *[(DECIDED_BY, one.digest) for one in deed.people])
        name = f"{self._subject} is version {payload['version']}"
        entry = Lineage("promotion", digest_json(payload), name, payload, made_of)
        if not self.registry.labels([entry.digest]):
            used = [made_of[0], *[("decision", decision)] * bool(decision)]
            replace(deed, config=deed.config | {"gates": gates}).record(self.registry, self.moved, used, [entry])

    def settle(self) -> None:
        """Let the alias follow the history; whoever sets it last has seen the last move."""
        last = None
        while last != (newest := self.registry.events(self._subject)[-1]):
            self.versions.point(self._alias, str(newest.payload["version"]))
            last = newest


@contextmanager
def _opened(run_file: RunFile, alias: str) -> Iterator[_Move]:
    _require_alias(alias)
    state, settings = Workspace.of(run_file).state, run_file.register
    tracker = Tracker(run_file, run_file.run_id, state)
    registry = Registry.open(_registry_url(run_file))
    try:
        yield _Move(registry, ModelVersions(tracker, settings.model_name), alias)
    finally:
        registry.close()


def _deed(kind: str, run_file: RunFile, options: dict[str, Any], by: str) -> Deed:
    by = said("--by", by, "name the person who decides") if by else ""
    settings = run_file.register.model_dump(mode="json")
    return Deed(kind, {"register": settings} | options, run_file.run_id, by, run_file.run.seed)


def _registry_url(run_file: RunFile) -> str:
    return Workspace.of(run_file).registry_url(run_file)


def _require_alias(alias: str) -> None:
    """Raise UserError for an alias that MLflow would refuse after the move stands in the history."""
    try:
        check_alias(alias)
    except ValueError as error:
        raise UserError(f"--alias {alias!r} {error}") from error


def _check_unchanged(version: str, content: str, versions: ModelVersions) -> Check:
    if digest_json(versions.files(version)) != content:
        return Check("files", "fail", f"version {version} changed in MLflow since it was promoted", "promote another")
    return Check("files", "pass", f"version {version} holds the bytes it was promoted with")


def _refuse(findings: tuple[Check, ...]) -> None:
    failed = [check for check in findings if check.status == "fail"]
    if failed:
        lines = (f"not promoted, {check.name}: {check.detail}" + f"; {check.fix}" * bool(check.fix) for check in failed)
        raise UserError("\n".join(lines))


def _tags(one: Finalist, findings: tuple[Check, ...], reading: TestReading | None) -> dict[str, str]:
    """Return what a version says of its promotion: the run, the way back into the registry, gates and test scores."""
    tags = {
        "iar.run_id": one.run_file.run_id,
        "iar.run_digest": one.run_file.digest,
        "iar.lineage": one.lineage,
        "iar.selection": one.decision,
        "iar.gates": ", ".join(f"{check.name} {check.status}" for check in findings),
    }
    tags |= {TAKEN_BEFORE: reading.mark} if reading and reading.mark else {}
    scores = one.scores
    if scores is None:
        return tags
    suites = {f"iar.test.{suite.suite}": f"{suite.points:.1f}" for suite in scores.suites}
    return tags | suites | {"iar.test.general": f"{scores.general:.1f}"}
