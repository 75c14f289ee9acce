"""Promotion of finished runs, against a real MLflow store and a real registry."""

import json
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar import cli
from iar.config import RunFile
from iar.errors import NoFeasibleCandidate, UserError
from iar.methods.digest import digest_json
from iar.records import (
    AttackResult,
    CandidateVerdict,
    EvalCheck,
    FunnelStep,
    Lineage,
    ModelScores,
    Outcome,
    QAPair,
    Reply,
    Selection,
    SuiteScore,
    VerifierAudit,
    from_json,
    to_json,
    write_json,
    write_records,
)
from iar.services import promotion
from iar.services.checkpoints import weights_digest
from iar.services.finalist import finalist
from iar.services.judges import judge_names, open_judges, vote, write_votes
from iar.services.lineage_activities import activities
from iar.services.model_versions import ModelVersions
from iar.services.promotion import history, promote, rollback
from iar.services.promotion_gates import check_verifiers
from iar.services.registry import Producer, Registry
from iar.services.registry_heads import tracked_heads
from iar.services.retraction import retract, standing_aliases
from iar.services.scoring import ITEMS, JUDGED_ITEMS, REPLIES, SCORES, VOTES, item_score
from iar.services.serving import service_name, storage_uri
from iar.services.suites import domain_items
from iar.services.test_lock import open_locked_test
from iar.services.tracking import Tracker
from iar.services.verifiers import OWN_ATTACKS, VERIFIERS
from iar.services.workspace import Manifest, Ref, Workspace, stored_files
from tests.services.tracker_cases import fresh_store, make_checkpoint

PICK = "ties-d0.3"
DOCUMENT = Lineage("document", "d" * 64, "velm.md", {})
PRODUCER = Producer("r", "s", "1", "c", 17, 0.0, 1.0)


@dataclass
class Books:
    """One state folder with any number of finished runs; `sections` are common to their run files."""

    state: Path
    sections: dict[str, Any] = field(default_factory=dict)

    @property
    def registry(self) -> Registry:
        return Registry.open(self.run_file("any").register.registry_url or f"sqlite:///{self.state}/registry.sqlite")

    def run_file(self, name: str, **sections: Any) -> RunFile:
        data = {"run": {"name": name, "state": str(self.state)}, "documents": {"path": "docs"}}
        return RunFile.model_validate(data | self.sections | sections)

    def artifact(
        self, run_file: RunFile, task: str, files: dict[str, Any], fill: Callable[[Path], object] | None = None
    ) -> Path:
        """Publish a finished artifact of a run: JSON documents and lists of records by name, and what `fill` adds."""
        workspace, key = Workspace(self.state), digest_json([run_file.run_id, task])
        work = workspace.work(task, key)
        work.mkdir(parents=True)
        for name, content in files.items():
            write_records(work / name, content) if name.endswith("l") else write_json(work / name, content)
        if fill:
            fill(work)
        workspace.publish(Manifest(task, task, key, {}, "code", 0.0, 1.0, stored_files(work), Outcome({}, "")))
        marker = workspace.run(run_file.run_id) / "tasks" / f"{task}.json"
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_json(marker, {"ref": str(workspace.ref(task, key))})
        return workspace.artifact(task, key)

    def finish(self, name: str, pick: str = PICK, dropped: int = 2, unchecked: str = "", **sections: Any) -> RunFile:
        """Keep the books of a finished run as its stages do; all runs share the questions."""
        run_file = self.run_file(name, **sections)
        pair = QAPair("q1", "d1", "c1", "test", "fact", "Who?", "Lind.", "Lind", (), "Lind", "offline")
        funnel = [to_json(FunnelStep("decontaminated", "question", 9, 7, {"leak": dropped}))]
        asked = replace(pair, id="v1", split="validation")
        questions = {"validation.jsonl": [asked], "test.jsonl": [pair]}
        names = ("validation", "test", "ifeval", "mmlu", "msbench")
        checks = [EvalCheck("questions", name, "e" * 64, 9, 9, 9, 0, 2, "") for name in names if name != unchecked]
        checks.append(EvalCheck("documents", "mmlu", "e" * 64, 9, 9, 4, 0, 2, ""))
        checked = {"funnel.json": funnel, "decontamination.json": [to_json(check) for check in checks]}
        data = self.artifact(run_file, "qa-build", {**questions, **checked})
        registered = self.artifact(
            run_file,
            "register",
            {"results.json": {}},
            (lambda folder: make_checkpoint(folder / "model", name.encode())) if pick else None,
        )
        self.artifact(run_file, "judge-eval-candidates-1", {}, lambda folder: examine(folder, run_file, asked))
        weights = weights_digest(registered / "model") if pick else ""
        dataset = stored_files(data)[-1].sha256
        verdicts, preference = (CandidateVerdict(PICK, "", "", "", "", 4),), run_file.select.preference
        selection = Selection(pick, "rule", 1.0, verdicts, dataset, weights, preference)
        self.artifact(run_file, "selector", {"selection.json": to_json(selection)})
        suites = (SuiteScore("domain", 21.0, 14.9, 27.1, 9, 0),)
        scores = [ModelScores(pick, "test", weights, suites, 21.0, 23.6, 17.2, 29.7)] if pick else []
        tested = {"scores.jsonl": scores, "questions.jsonl": [pair]}
        self.artifact(run_file, "locked-test", tested, lambda folder: examine(folder, run_file, pair))
        if pick:
            self._enter(run_file, selection, data, registered / "model")
        return run_file

    def _enter(self, run_file: RunFile, selection: Selection, data: Path, model: Path) -> None:
        decision = Lineage("decision", digest_json(to_json(selection)), "pick", {})
        weights = Lineage("candidate", selection.candidate_digest, PICK, {}, (("base", DOCUMENT.digest),))
        identity = digest_json({"weights": weights.digest, "decision": decision.digest})
        inputs = (("selected-by", decision.digest), ("weights", weights.digest))
        self.registry.record([DOCUMENT, decision, weights, Lineage("checkpoint", identity, "m", {}, inputs)], PRODUCER)
        open_locked_test(data, selection, self.registry)
        self.tracker(run_file).register_model(model, {"iar.lineage": identity})

    def tracker(self, run_file: RunFile) -> Tracker:
        return Tracker(run_file, run_file.run_id, self.state)

    def versions(self, run_file: RunFile) -> ModelVersions:
        return ModelVersions(self.tracker(run_file), run_file.register.model_name)

    def alias(self, run_file: RunFile, alias: str = "champion") -> str:
        return self.versions(run_file).alias(alias)


def verifier_audit(name: str, fooled: int = 0) -> VerifierAudit:
    """Return what a judge made of a hundred attacks."""
    return VerifierAudit(name, "2", "s" * 64, (AttackResult("empty", 100, 0, fooled, 0),), ())


def examine(folder: Path, run_file: RunFile, pair: QAPair, text: str = "Lind.") -> None:
    """Let the run file's panel judge one reply, and write what an evaluation leaves."""
    place = folder / PICK
    place.mkdir()
    items, replies = domain_items([pair], run_file), {pair.id: Reply(pair.id, text, 3, False)}
    write_records(folder / JUDGED_ITEMS, items)
    write_records(folder / VERIFIERS, [verifier_audit(name) for name in judge_names(run_file)])
    verdicts = vote(PICK, items, replies, open_judges(run_file, folder))
    write_records(place / REPLIES, replies.values())
    write_votes(place / VOTES, verdicts.votes)
    write_records(place / ITEMS, [item_score(PICK, item, replies[item.id], verdicts.settled) for item in items])
    write_json(place / SCORES, {})


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.delenv("IAR_STATE", raising=False)
    return Books(fresh_store(tmp_path / "state"))


@pytest.mark.parametrize(
    ("fooled", "limit", "status", "told"),
    [
        ([0, 0, 0], 0.02, "pass", "attacks that scored above 0: rule:exact 0.0 % (0.0 to 3.7 %)"),
        ([0, 9, 0], 0.02, "fail", "rule:token-f1 scored 9.0 % of 100 attacks above 0 (empty 9.0 %)"),
        ([0, 9, 0], 0.3, "warn", "rule:token-f1 9.0 % (4.8 to 16.2 %)"),
        ([0, 0], 0.02, "fail", "rule:char-ngram judged without an audit"),
    ],
)
def test_judges_that_attacks_fool_or_nobody_attacked_promote_nothing(
    books: Books, fooled: list[int], limit: float, status: str, told: str
) -> None:
    run_file = books.finish("one", evaluate={"max_attack_success": limit})
    offered = finalist(run_file)
    folder = offered.artifacts["judge-eval-candidates-1"].path
    names = judge_names(run_file)
    write_records(folder / VERIFIERS, [verifier_audit(name, n) for name, n in zip(names, fooled, strict=False)])

    found = check_verifiers(offered)

    assert found.status == status and told in found.detail
    assert ("raised to 30.0 % for rule:token-f1" in found.fix) == (status == "warn")


@pytest.mark.parametrize(("fooled", "status"), [(3, "pass"), (9, "fail")])
def test_judges_that_the_picks_own_wrong_answers_fool_promote_nothing(books: Books, fooled: int, status: str) -> None:
    """Three of a hundred are more than 2 %, but not surely; nine are."""
    offered = finalist(books.finish("one"))
    write_records(offered.artifacts["locked-test"].path / OWN_ATTACKS, [verifier_audit("rule:exact", fooled)])

    found = check_verifiers(offered)

    assert found.status == status and f"around wrong answers of {PICK} itself: rule:exact {fooled}.0 %" in found.detail


def test_a_run_that_passes_every_gate_moves_the_alias_and_tags_its_version(books: Books) -> None:
    run_file = books.finish("one")

    moved = promote(run_file, "champion")

    assert (moved.version, moved.before, books.alias(run_file)) == ("1", "", "1")
    assert {check.name: check.status for check in moved.gates} == dict.fromkeys(
        ("selection", "test", "non-regression", "decontamination", "retraction", "verifiers", "audit", "files"), "pass"
    )
    tags = books.versions(run_file).tags("1")
    assert tags["iar.gates"] == (
        "selection pass, test pass, non-regression pass, decontamination pass, retraction pass, "
        "verifiers pass, audit pass, files pass"
    )
    assert (tags["iar.run_id"], tags["iar.run_digest"]) == (run_file.run_id, run_file.digest)
    assert (tags["iar.test.domain"], tags["iar.test.general"]) == ("21.0", "23.6")
    assert books.registry.find(tags["iar.lineage"]).kind == "checkpoint"


def test_a_run_is_promoted_from_whatever_folder(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    books.finish("one")
    run_yaml = tmp_path / "one.yaml"
    run_yaml.write_text(f"run:\n  name: one\n  state: {books.state}\ndocuments:\n  path: docs\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # without examples/, which the run file names

    assert cli.call(["promote", str(run_yaml)]) == 0
    assert "pass  audit: 4 votes, 4 of them cast again" in capsys.readouterr().out
    assert not list(Path().iterdir())


def test_promoting_again_changes_nothing(books: Books) -> None:
    run_file = books.finish("one")
    promote(run_file, "champion")

    assert promote(run_file, "champion").before == "1"
    assert len(history(run_file, "champion")) == 1


def test_rollback_goes_back_step_by_step_and_the_history_keeps_all(books: Books) -> None:
    runs = [books.finish(name) for name in ("one", "two", "three")]
    for run_file in runs:
        promote(run_file, "champion", test_reused=True)
    run_file = runs[0]

    assert [rollback(run_file, "champion").version for _ in range(2)] == ["2", "1"]

    assert books.alias(run_file) == "1"
    moves = [(move["kind"], move["before"], move["version"]) for move in history(run_file, "champion")]
    assert moves == [
        ("promote", "", "1"), ("promote", "1", "2"), ("promote", "2", "3"), ("rollback", "3", "2"),
        ("rollback", "2", "1"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="iar-demo@champion: no promotion to go back to; see --history"):
        rollback(run_file, "champion")
    # A new promotion after a rollback is undone to where the rollback had led.
    promote(runs[2], "champion", test_reused=True)
    assert rollback(run_file, "champion").version == "1"


def test_a_promotion_stands_below_its_model_and_is_an_activity_with_the_person_who_decided(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    promote(first, "champion", by="Ada Byron")
    promote(second, "champion", test_reused=True)
    rollback(second, "champion", by="Bob Noyce")

    registry = books.registry
    promotions = registry.of_kind("promotion")
    assert promotions[0].name.endswith("@champion is version 1")
    assert [one.payload["version"] for one in promotions] == ["1", "2", "1"]
    for one, run in zip(promotions, (first, second, first), strict=True):
        inputs = dict(registry.find(one.digest).inputs)
        assert inputs["promotes"] == finalist(run).lineage
    assert registry.find(dict(registry.find(promotions[0].digest).inputs)["decided-by"]).name == "Ada Byron"
    assert promotions[0].digest in registry.products([DOCUMENT.digest])

    done = activities(registry, kind="promote")
    assert [one.run_id for one in done] == [first.run_id, second.run_id]
    assert [role for role, _ in done[0].used] == ["promotes", "decision", "decided-by"]
    assert done[0].config["alias"] == "champion" and done[0].config["gates"]["selection"] == "pass"
    assert done[0].made == (("promotion", promotions[0].digest),) and done[0].environment and done[0].seed == 17
    (back,) = activities(registry, kind="rollback")
    assert back.config["gates"].keys() == {"retraction", "files"} and registry.verify() == []


def test_a_test_that_another_model_took_before_is_refused_unless_accepted(books: Books) -> None:
    books.finish("one")
    second = books.finish("two")

    seen = rf"1 of 1 questions taken before by 1 other model \({PICK}\)"
    line = rf"not promoted, test: {seen}, so its scores flatter; hold out new"
    with pytest.raises(UserError, match=line):
        promote(second, "champion")
    assert books.alias(second) == ""
    promote(second, "champion", test_reused=True)
    tags = books.versions(second).tags("2")
    assert "test warn" in tags["iar.gates"]
    assert tags["iar.test.taken_before"] == f"1 of 1 questions taken before by 1 other model ({PICK})"


def test_another_preference_is_said_at_the_gate(books: Books) -> None:
    found = promote(books.finish("one", select={"preference": "general"}), "champion")
    (gate,) = (one for one in found.gates if one.name == "selection")
    assert gate.status == "pass" and "picked by preference general instead of the rule's own" in gate.detail


def test_a_second_reading_for_the_same_pick_is_no_second_model(books: Books) -> None:
    run_file = books.finish("one")
    data = Workspace(books.state).artifact("qa-build", digest_json([run_file.run_id, "qa-build"]))
    selector = Workspace(books.state).artifact("selector", digest_json([run_file.run_id, "selector"]))
    selection = from_json(Selection, json.loads((selector / "selection.json").read_text()))
    open_locked_test(data, selection, books.registry)

    assert promote(run_file, "champion").version == "1"


def test_an_unfinished_run_and_one_without_a_pick_are_told_apart(books: Books) -> None:
    with pytest.raises(UserError, match=r"has not finished qa-build in .*/state; finish it, or name its state folder"):
        promote(books.run_file("never"), "champion")
    with pytest.raises(NoFeasibleCandidate, match="has no feasible candidate, so nothing to promote; the reasons are"):
        promote(books.finish("none", pick=""), "champion")


def test_a_model_made_from_something_retracted_is_refused_also_on_the_way_back(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    for run_file in (first, second):
        promote(run_file, "champion", test_reused=True)
    retract(books.registry, "document:dddd", "asked to")

    line = (
        r"not promoted, retraction: checkpoint:\w{12} <- candidate:\w{12} <- document:d{12} \(velm.md\) was retracted "
        r'on \d{4}-\d\d-\d\d: "asked to"; run again without it$'
    )
    with pytest.raises(UserError, match=line):
        promote(first, "other", test_reused=True)
    with pytest.raises(UserError, match=line):
        rollback(first, "champion")
    assert books.alias(first) == "2"


def test_a_retraction_names_the_aliases_that_still_serve_what_was_made_from_it(
    books: Books, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = books.finish("one")
    promote(run_file, "champion")
    unrelated = Lineage("document", "e" * 64, "oss.md", {})
    books.registry.record([unrelated], PRODUCER)

    command = ["lineage", "retract", "document:dddd", "--reason", "asked to", "--state", str(books.state)]
    assert cli.call(command) == 0
    name = f"{run_file.register.model_name}@champion"
    assert f"Still served: {name} is version 1; promote a run without it" in capsys.readouterr().out
    assert standing_aliases(books.registry, DOCUMENT.digest) == {name: "1"}
    assert standing_aliases(books.registry, unrelated.digest) == {}


def test_an_alias_that_went_back_to_a_model_without_what_was_retracted_is_not_named(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    for run_file in (first, second):
        promote(run_file, "champion", test_reused=True)
    model = finalist(second).lineage
    assert list(standing_aliases(books.registry, model).values()) == ["2"]

    rollback(first, "champion")

    assert standing_aliases(books.registry, model) == {}
    assert list(standing_aliases(books.registry, finalist(first).lineage).values()) == ["1"]


def test_every_failed_gate_is_a_line_of_its_own(books: Books) -> None:
    run_file = books.finish("one", dropped=1)
    retract(books.registry, DOCUMENT.digest, "gone")

    with pytest.raises(UserError) as refused:
        promote(run_file, "champion")

    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        "not promoted, decontamination",
        "not promoted, retraction",
    ]


def test_an_evaluation_that_was_not_checked_is_named(books: Books) -> None:
    run_file = books.finish("one", unchecked="msbench")
    with pytest.raises(
        UserError,
        match=r"^not promoted, decontamination: unchecked: msbench \(no check is on record\); give files that",
    ):
        promote(run_file, "champion")


@pytest.mark.parametrize("where", ["artifact", "mlflow"])
def test_changed_bytes_are_found_on_either_side(books: Books, where: str) -> None:
    run_file = books.finish("one")
    stored = {
        "artifact": next((books.state / "artifacts" / "register").glob("*/model/config.json")),
        "mlflow": next((books.state / "mlartifacts").rglob("config.json")),
    }[where]
    stored.unlink()  # one file under two names: a new one changes one side
    stored.write_text("[]")

    named = r"config\.json was changed" if where == "artifact" else r"version 1 in MLflow differs .* in config\.json"
    with pytest.raises(UserError, match=f"not promoted, files: .*{named}"):
        promote(run_file, "champion")


def test_a_file_missing_in_mlflow_is_found_on_promotion_and_on_rollback(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    for run_file in (first, second):
        promote(run_file, "champion", test_reused=True)
    source = books.versions(first)._version("1").source
    (Path(source.removeprefix("file://")) / "config.json").unlink()

    with pytest.raises(UserError, match=r"version 1 in MLflow differs from the run in config\.json"):
        promote(first, "champion", test_reused=True)
    with pytest.raises(UserError, match="files: version 1 changed in MLflow since it was promoted; promote another"):
        rollback(first, "champion")


def test_an_alias_moved_by_another_hand_is_refused_until_it_is_named(books: Books) -> None:
    first, second = books.finish("one"), books.finish("two")
    books.versions(first).point("champion", "2")

    line = "iar-demo@champion stands at version 2, expected none; if it shall move from there, give --expect 2"
    with pytest.raises(UserError, match=line):
        promote(first, "champion", test_reused=True)
    promote(first, "champion", expect="2", test_reused=True)
    with pytest.raises(UserError, match="stands at version 1, expected none"):
        promote(second, "champion", expect="none", test_reused=True)
    assert books.alias(first) == "1"


def test_a_promotion_killed_before_the_alias_moved_is_finished_by_the_next(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file = books.finish("one")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ModelVersions, "point", interrupted)
        promote(run_file, "champion")
    assert books.alias(run_file) == "" and len(history(run_file, "champion")) == 1

    promote(run_file, "champion")

    assert books.alias(run_file) == "1" and len(history(run_file, "champion")) == 1


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_of_two_promotions_at_once_one_wins_and_the_alias_follows_it(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [books.finish("one"), books.finish("two")]
    both_have_looked = threading.Barrier(2, timeout=30)
    check = promotion._Move.check

    def check_together(move: Any, expect: str | None) -> str:
        found = check(move, expect)
        both_have_looked.wait()
        return found

    monkeypatch.setattr(promotion._Move, "check", check_together)
    outcomes: list[str] = []

    def attempt(run_file: RunFile) -> None:
        try:
            outcomes.append(promote(run_file, "champion", test_reused=True).version)
        except UserError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=attempt, args=(run_file,)) for run_file in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    won, lost = sorted(outcomes)
    assert won in ("1", "2") and lost.startswith(f"iar-demo@champion: meanwhile moved to version {won} of ")
    assert books.alias(runs[0]) == won and len(history(runs[0], "champion")) == 1


def test_the_alias_ends_where_the_history_ends_though_a_slow_writer_sets_it_last(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = books.finish("one"), books.finish("two")
    point = ModelVersions.point

    def overtaken(versions: ModelVersions, alias: str, version: str) -> None:
        monkeypatch.setattr(ModelVersions, "point", point)
        promote(second, "champion", test_reused=True)
        point(versions, alias, version)

    monkeypatch.setattr(ModelVersions, "point", overtaken)
    promote(first, "champion", test_reused=True)

    assert [move["version"] for move in history(first, "champion")] == ["1", "2"]
    assert books.alias(first) == "2"


def test_the_command_prints_gates_and_the_move_and_refuses_with_exit_code_2(
    books: Books, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = books.finish("one")
    run_yaml = tmp_path / "one.yaml"
    run_yaml.write_text(f"run:\n  name: one\n  state: {books.state}\ndocuments:\n  path: docs\n")
    arguments = ["promote", str(run_yaml)]

    assert cli.call(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"pass  selection: {PICK} is feasible, one of 1 considered"
    assert printed[-1] == f"iar-demo@champion moved from version none to version 1, run {run_file.run_id}"
    assert cli.call([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"] == "1"
    assert cli.call([*arguments, "--history"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2:] == ["promote", "none", "1", run_file.run_id]
    assert cli.call([*arguments, "--rollback"]) == 2
    assert capsys.readouterr().err == "error: iar-demo@champion: no promotion to go back to; see --history\n"


@pytest.mark.parametrize("alias", ["latest", "v3", "v12", "Bad alias!", "a/b", "", "Champion", "x" * 256, "a\n"])
def test_an_alias_that_mlflow_refuses_is_refused_before_anything_is_recorded(
    books: Books, tmp_path: Path, capsys: pytest.CaptureFixture[str], alias: str
) -> None:
    run_file = books.finish("one")
    run_yaml = tmp_path / "one.yaml"
    run_yaml.write_text(f"run:\n  name: one\n  state: {books.state}\ndocuments:\n  path: docs\n")
    before = books.registry.events()

    for option in ((), ("--history",), ("--rollback",)):
        assert cli.call(["promote", str(run_yaml), "--alias", alias, *option]) == 2
        refused = capsys.readouterr().err
        assert refused.startswith(f"error: --alias {alias!r} ") and refused.endswith(", such as champion\n")
    assert books.registry.events() == before and "iar.gates" not in books.versions(run_file).tags("1")


@pytest.mark.parametrize("alias", ["vanilla", "v3-beta", "latest-good", "x" * 255])
def test_mlflow_takes_every_alias_that_is_accepted(books: Books, alias: str) -> None:
    run_file = books.finish("one")
    promote(run_file, alias)
    assert books.alias(run_file, alias) == "1"


def test_the_history_makes_nothing_and_says_that_there_are_no_moves(
    books: Books, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_yaml, empty, registered = tmp_path / "one.yaml", tmp_path / "empty", tmp_path / "registered"
    run_yaml.write_text("run:\n  name: one\ndocuments:\n  path: docs\n")
    empty.mkdir()
    Registry.open(f"sqlite:///{registered}/registry.sqlite").close()
    before = sorted(tmp_path.rglob("*"))

    for state in (empty, registered, tmp_path / "nowhere"):
        arguments = ["promote", str(run_yaml), "--state", str(state)]
        assert cli.call([*arguments, "--history"]) == 0
        assert capsys.readouterr().out == f"iar-demo@champion has never moved, says the registry in {state}\n"
        assert cli.call([*arguments, "--history", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert cli.call([*arguments, "--rollback"]) == 2
        assert capsys.readouterr().err == "error: iar-demo@champion: no promotion to go back to; see --history\n"
    assert sorted(tmp_path.rglob("*")) == before


@contextmanager
def without_rights() -> Iterator[None]:
    """Be nobody for a while where tests run as root, whom no permission stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_history_and_lineage_are_read_in_a_folder_that_nobody_may_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("IAR_STATE", raising=False)
    with tempfile.TemporaryDirectory() as place:  # pytest's own folder is closed to others
        state = Path(place) / "50% of #1"
        registry = Registry.open(f"sqlite:///{Path(place) / 'made' / 'registry.sqlite'}")
        registry.record([DOCUMENT], PRODUCER)
        registry.event_after("", "promote", "iar-demo@champion", {"version": "1", "before": "", "run_id": "one-0"})
        registry.close()
        (Path(place) / "made").rename(state)
        Path(place).chmod(0o755)
        state.chmod(0o555)
        run_yaml = Path(place) / "one.yaml"
        run_yaml.write_text("run:\n  name: one\ndocuments:\n  path: docs\n")
        commands = (["promote", str(run_yaml), "--history"], ["lineage", "downstream", "document:dddd"])
        for command in commands:  # as oneself first: nobody may read what Python imports late
            assert cli.call([*command, "--state", str(state)]) == 0
        state.chmod(0o555)
        with without_rights():
            assert [cli.call([*command, "--state", str(state)]) for command in commands] == [0, 0]
        state.chmod(0o755)
        assert [path.name for path in state.iterdir()] == ["registry.sqlite"]
    printed = capsys.readouterr()
    assert printed.out.count("promote  none  1   one-0") == 2 and printed.out.count("velm.md") == 2


def test_the_hand_over_to_kserve_names_files_that_a_cluster_can_read(
    books: Books, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = books.finish("one")
    text = f"run:\n  name: {{}}\n  state: {books.state}\ndocuments:\n  path: docs\n"
    (tmp_path / "one.yaml").write_text(text.format("one"))
    out = tmp_path / "out" / "service.yaml"
    arguments = ["promote", str(tmp_path / "one.yaml"), "--kserve", str(out)]

    assert cli.call(arguments) == 2
    assert capsys.readouterr().err == (
        "error: not promoted, storage: no cluster can read the version's files; give MLflow a bucket (s3://) for "
        "artifacts, or run it on Kubeflow\n"
    )
    assert books.alias(local) == "" and not out.exists()
    assert cli.call([*arguments[:3], str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.endswith("x.json: not the name of a YAML file; give one that ends in .yaml\n")

    cluster = books.finish("two", platform={"backend": "kubeflow"})
    (tmp_path / "two.yaml").write_text(text.format("two") + "platform:\n  backend: kubeflow\n")
    assert cli.call(["promote", str(tmp_path / "two.yaml"), "--test-reused", "--kserve", str(out)]) == 0
    service = yaml.safe_load(out.read_text())
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert service["metadata"]["name"] == "iar-demo-champion"
    assert service["metadata"]["annotations"] == {"iar/model-version": "2", "iar/run-id": cluster.run_id}
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["modelFormat"] == {"name": "huggingface"} and "trust" not in out.read_text()
    claim, _, place = predictor["model"]["storageUri"].removeprefix("pvc://").partition("/")
    assert claim == "iar-state" and (books.state / place / "model.safetensors").is_file()
    assert predictor["model"]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert predictor["nodeSelector"] and predictor["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    # The namespace of the manifests admits nothing else.
    assert predictor["model"]["securityContext"] == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize(
    ("model", "alias", "name"),
    [
        ("iar-demo", "champion", "iar-demo-champion"),
        ("Team.Model_1", "champion", r"iar-team-model-1-champi-\w{6}"),
        ("x" * 80, "champion", r"iar-x{19}-\w{6}"),
        ("1st", "a", r"iar-1st-a-\w{6}"),
    ],
)
def test_a_service_has_a_name_that_kubernetes_takes(model: str, alias: str, name: str) -> None:
    made = service_name(model, alias)
    assert re.fullmatch(name, made) and len(made) <= 30


def test_a_bucket_is_read_where_it_is(books: Books) -> None:
    run_file = books.run_file("one")
    assert (
        storage_uri(run_file, "s3://b/1/r/artifacts/model", Ref(Path("/x"), "0" * 64)) == "s3://b/1/r/artifacts/model"
    )


def put_back(database: Path, copy: Path) -> None:
    """As the pages of `copy`, through SQLite: other connections of this process have the database open."""
    with closing(sqlite3.connect(copy)) as older, closing(sqlite3.connect(database)) as now:
        older.backup(now)


def test_an_older_copy_of_the_registry_promotes_nothing(books: Books, tmp_path: Path) -> None:
    run_file = books.finish("one")
    with (
        closing(sqlite3.connect(books.state / "registry.sqlite")) as now,
        closing(sqlite3.connect(tmp_path / "older.sqlite")) as copy,
    ):
        now.backup(copy)
    promote(run_file, "champion")
    assert ("registry", "pass") in {(check.name, check.status) for check in promote(run_file, "champion").gates}
    put_back(books.state / "registry.sqlite", tmp_path / "older.sqlite")
    (books.state / "registry-heads.jsonl").unlink(missing_ok=True)

    with pytest.raises(
        UserError, match=r"^not promoted, registry: event \d+: once ended with .* an older copy"
    ) as refused:
        promote(run_file, "challenger")
    assert "put the right database back" in str(refused.value) and books.alias(run_file, "challenger") == ""
    missing = books.registry.lacking(tracked_heads(run_file, books.state, books.registry))
    assert [line.split()[0] for line in missing] == ["event", "recording"]
