"""Private, rotating and non-regression sets: nothing of their texts leaves the private store, and each look counts."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from iar.config import RunFile
from iar.errors import TemporaryError, UserError
from iar.methods.contamination import TrainingText
from iar.records import Look, ModelScores, Reply, read_records
from iar.services import local_run
from iar.services.decontamination import decontaminate, reject
from iar.services.evaluations import general_evaluations
from iar.services.llm import ChatClient
from iar.services.looks import read_looks
from iar.services.registry import Registry
from iar.services.reply_cache import FILE_NAME
from iar.services.stage_keys import key_parts
from iar.services.subjects import Subject
from iar.services.suites import load_suites
from iar.services.vault import open_vault, replies_told, set_digest, withheld
from iar.services.workspace import Context, Workspace
from iar.stages import judge_eval, locked_test
from tests.examination import examination_run_file, write_questions
from tests.finished_run import REPOSITORY, tiny_run_file
from tests.services.chat_server import Answer, serve
from tests.stages.test_locked_test import PICK, inputs, run_file, select
from tests.tiny_model import make_tiny_model

__all__ = ["inputs", "run_file"]

ASKED, WANTED, NAMED = "zorblaxine seven seven four", "quuxifyl nine", "rowid-of-mine"
SECRETS = (ASKED, WANTED, NAMED)
ROWS = [
    {"id": f"{NAMED}-{number}", "prompt": f"Who keeps the {ASKED} {number}?", "reference": f"{WANTED} {number}"}
    for number in range(6)
]


def suite(folder: Path, name: str = "hidden", rows: list[str] | None = None, **keys: object) -> str:
    """Write a private suite; return the path of its YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in ROWS] if rows is None else rows
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    values: dict[str, object] = {"name": name, "prompts": f"{name}.jsonl", "verifier": "rule:exact", "max_tokens": 8}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(values | {"private": True} | keys), encoding="utf-8")
    return str(path)


def with_suites(settings: RunFile, *places: str, **evaluate: Any) -> RunFile:
    data = settings.model_dump(mode="json")
    return RunFile.model_validate(data | {"evaluate": data["evaluate"] | {"suites": list(places)} | evaluate})


def leaks(folder: Path, outside: Path) -> Iterator[str]:
    """Yield each file below `folder` but not below `outside` that holds a planted text; Parquet is unpacked."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or path.is_relative_to(outside):
            continue
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += json.dumps(pyarrow.parquet.read_table(path).to_pylist(), default=str).encode()
        yield from (f"{path}: {text}" for text in SECRETS if text.encode() in data)


@pytest.mark.slow
def test_no_file_of_a_whole_run_holds_a_text_of_a_private_suite(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report, MLflow, registry, logs, votes, metadata of Kubeflow: all in the state folder; an open suite is there."""
    monkeypatch.chdir(REPOSITORY)
    suites = tmp_path / "suites"
    shown = json.dumps({"prompt": "Who keeps the open wimblestock?", "reference": "nobody"})
    places = [suite(suites, non_regression=True), suite(suites, "judged", verifier="judge")]
    places.append(suite(suites, "open", [shown], verifier="judge", private=False))
    plain = tiny_run_file(tmp_path, tiny_model_folder)
    settings = with_suites(plain.model_copy(update={"baselines": type(plain.baselines)()}), *places)
    local_run.run(settings)

    state = Workspace.of(settings).state
    assert list(leaks(state, state / "private")) == []
    assert any(b"wimblestock" in path.read_bytes() for path in state.rglob("judged-items.jsonl"))
    assert len(list((state / "private").rglob("replies.jsonl"))) >= 2 * 4
    assert (state / "private").stat().st_mode & 0o077 == 0

    register = next((state / "artifacts" / "register").glob("*/results.json"))
    results = json.loads(register.read_text())
    pick = next(model for model in results["models"] if model["id"] == results["pick"] and model["split"] == "test")
    assert pick["hidden"]["count"] == 6 and pick["hidden"]["private"] and pick["hidden"]["looks"] >= 4
    assert pick["judged"]["set"] != pick["hidden"]["set"] and pick["domain"]["looks"] == 1
    page = (register.parent / "report.html").read_text()
    assert "hidden, 6 items, private," in page and "models scored on the set so far" in page
    (regression,) = results["non_regression"]
    assert regression["against"].startswith("theta_0 (no earlier pick") and regression["items"] == 6


def test_a_wrong_row_of_a_private_suite_is_named_without_what_it_holds(tmp_path: Path) -> None:
    settings = examination_run_file(tmp_path / "suites")
    for verifier, row in (
        ("rule:exact", {"prompt": ASKED, "reference": [WANTED]}),
        ("regex", {"prompt": ASKED, "pattern": f"({WANTED}"}),
        ("choice", {"prompt": ASKED, "choices": [WANTED], "answer": "Z"}),
        ("judge", {"prompt": [ASKED], "reference": WANTED}),
    ):
        asked = with_suites(settings, suite(tmp_path, "bad", [json.dumps(row)], verifier=verifier))
        with pytest.raises(UserError, match=r"bad\.jsonl:1: no row that .* can verify \(it is private") as caught:
            load_suites(asked)
        assert not any(text in str(caught.value) for text in SECRETS) and caught.value.__cause__ is None
    asked = with_suites(settings, suite(tmp_path, "bad", [json.dumps({"prompt": [ASKED]})]))
    with pytest.raises(UserError, match="what it holds is private") as caught:
        general_evaluations(asked)
    assert ASKED not in str(caught.value)


def test_a_leak_of_a_private_prompt_is_dropped_and_shown_by_digests_alone(tmp_path: Path) -> None:
    settings = with_suites(examination_run_file(tmp_path / "suites"), suite(tmp_path))
    evaluations = general_evaluations(settings)
    text = TrainingText("doc", "", f"It was asked: {ROWS[0]['prompt']} Nobody knew.")
    found = decontaminate("documents", [text], evaluations)
    (hit,) = found.hits
    assert (hit.evaluation, hit.text, hit.prompt) == ("hidden", "", "") and len(hit.prompt_id) == 12
    assert ASKED not in json.dumps(vars(reject("documents", hit)))


def test_an_error_about_a_private_suite_is_passed_on_without_its_text() -> None:
    with (
        pytest.raises(
            TemporaryError, match="judged: TemporaryError while the private suite was asked or judged"
        ) as caught,
        withheld("judged"),
    ):
        raise TemporaryError(f"the server said: {ASKED}")
    assert ASKED not in str(caught.value) and caught.value.__suppress_context__


def test_what_a_server_says_of_a_private_prompt_stays_in_the_private_store(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """A judge's server refuses the private questions and quotes them."""
    inputs = {"data": write_questions(tmp_path / "data"), "base": tiny_model_folder}
    for seed, role in enumerate(("vanilla", "tuned"), 1):
        make_tiny_model(tmp_path / role / "checkpoint", seed)
        inputs[role] = tmp_path / role

    def script(body: dict[str, Any], number: int) -> Answer:
        text = json.dumps(body)
        refused = Answer(status=404, body=json.dumps({"error": {"message": f"bad prompt: {text}"}}))
        return refused if ASKED in text else Answer('{"reason": "", "score": 0}')

    with serve(script) as server:
        judge = server.endpoint().model_dump(mode="json")
        rows = [json.dumps(row | {"reference": "?!"}) for row in ROWS]  # a wordless reply is judged where this is right
        place = suite(tmp_path, "judged", rows, verifier="judge")
        judges = [judge, "rule:exact", "rule:token-f1"]
        settings = with_suites(examination_run_file(tmp_path / "suites"), place, judges=judges)
        context = Context.for_tests(tmp_path / "state")
        with pytest.raises(UserError, match="judged: UserError while the private suite was asked") as caught:
            judge_eval.run(settings, inputs, tmp_path / "out", context)
        assert not any(text in str(caught.value) for text in SECRETS)
        assert any(ASKED in json.dumps(call) for call in server.calls)
    assert list(leaks(tmp_path / "state", tmp_path / "state" / "private")) == []
    assert list(leaks(tmp_path / "out", tmp_path / "none")) == []


def test_what_is_asked_of_a_private_suite_is_in_the_books_and_within_the_budget(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    inputs = {"data": write_questions(tmp_path / "data"), "base": tiny_model_folder}
    for seed, role in enumerate(("vanilla", "tuned"), 1):
        make_tiny_model(tmp_path / role / "checkpoint", seed)
        inputs[role] = tmp_path / role
    with serve(lambda *_: Answer('{"reason": "", "score": 0}')) as server:
        rows = [json.dumps(row | {"reference": "?!"}) for row in ROWS]
        place = suite(tmp_path, "judged", rows, verifier="judge")
        judge = server.endpoint().model_dump(mode="json")
        asked = with_suites(
            examination_run_file(tmp_path / "suites"), place, judges=[judge, "rule:exact", "rule:token-f1"]
        )
        state = tmp_path / "state"
        judge_eval.run(asked, inputs, tmp_path / "out", Context.for_tests(state))
        private = [call for call in server.calls if ASKED in json.dumps(call)]
        assert private
        spent = ChatClient(server.endpoint(), state / "llm-cache").spent()
        assert spent.calls == len(server.calls)
        with sqlite3.connect(state / "llm-cache" / FILE_NAME) as database:
            kept = database.execute("SELECT COUNT(*) FROM calls").fetchone()
        assert kept == (len(server.calls) - len(private),)

        place = suite(tmp_path, "judged", [json.dumps(row | {"reference": "!?"}) for row in ROWS], verifier="judge")
        bounded = with_suites(asked, place, judges=[judge | {"budget_calls": spent.calls}, *asked.evaluate.judges[1:]])
        with pytest.raises(UserError, match="judged: UserError while the private suite was asked or judged"):
            judge_eval.run(bounded, inputs, tmp_path / "more", Context.for_tests(state))
        assert len(server.calls) == spent.calls
    assert list(leaks(state, state / "private")) == []


def test_the_day_decides_the_part_and_without_a_day_nothing_is_asked(tmp_path: Path) -> None:
    settings = with_suites(examination_run_file(tmp_path / "s"), suite(tmp_path, rotate={"parts": 3, "every_days": 30}))
    with pytest.raises(UserError, match=r"evaluate\.date is empty, and the suite 'hidden' rotates"):
        load_suites(settings)

    def asked(day: str) -> set[str]:
        return {
            item.prompt for item in load_suites(with_suites(settings, *settings.evaluate.suites, date=day))["hidden"]
        }

    days = [asked(day) for day in ("2026-12-01", "2026-12-02", "2027-01-01", "2027-02-01", "2027-03-01")]
    assert days[0] == days[1] and len(days[0]) == 2
    assert set().union(*days[1:4]) == {row["prompt"] for row in ROWS} and days[4] == days[1]
    # All parts are kept out of the training data, whichever is asked, and the day is part of the key.
    (hidden,) = [one for one in general_evaluations(settings) if one.name == "hidden"]
    assert len(hidden.prompts) == len(ROWS)
    dated = [with_suites(settings, *settings.evaluate.suites, date=day) for day in ("2026-12-01", "2027-01-01")]
    given = {"data": "1", "base": "2", "candidates": "4"}
    assert key_parts("judge_eval", dated[0], given) != key_parts("judge_eval", dated[1], given)
    assert key_parts("qa_build", dated[0], {}) == key_parts("qa_build", dated[1], {})
    assert dated[0].digest != dated[1].digest


def test_a_wrong_day_is_refused_and_no_day_is_no_part_of_a_run_file(tmp_path: Path) -> None:
    settings = examination_run_file(tmp_path)
    with pytest.raises(ValueError, match=r"'2026-13-01' is no day; write it as 2026-12-01"):
        with_suites(settings, date="2026-13-01")
    assert "date" not in settings.model_dump()["evaluate"]


def test_each_model_scored_on_a_set_is_a_look_and_the_same_weights_are_none(
    run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> None:
    context = Context.for_tests(tmp_path)
    validated = {role: inputs[role] for role in ("data", "base", "vanilla", "tuned")}
    judge_eval.run(run_file, validated, tmp_path / "first", context)
    judge_eval.run(run_file, validated, tmp_path / "again", context)
    for folder in ("first", "again"):
        looks = {(one.model, one.suite): one.looks for one in read_looks([tmp_path / folder])}
        assert looks["theta_IA", "mmlu"] == 3
    assert {one.looks for one in read_looks([tmp_path / "again"])} == {3}
    # The same scores at another look are the same files.
    same = [list(read_records(tmp_path / folder / "scores.jsonl", ModelScores)) for folder in ("first", "again")]
    assert same[0] == same[1]

    context = select(inputs, tmp_path)
    locked_test.run(run_file, inputs, tmp_path / "out", context)
    tested = {(one.model, one.suite): one.looks for one in read_looks([tmp_path / "out"])}
    assert tested[PICK, "mmlu"] == 4 and tested[PICK, "domain"] == 1 and tested["theta_IA", "domain"] == 4


def test_another_engine_or_system_turn_asks_a_private_suite_anew(tmp_path: Path) -> None:
    """The store is that of all runs: what one was answered with a persona is nothing that another may be scored by."""
    settings = with_suites(examination_run_file(tmp_path / "suites"), suite(tmp_path))
    items = load_suites(settings)["hidden"]
    server = {"name": "s", "base_url": "http://127.0.0.1:1/v1", "model": "{model}"}
    turned = RunFile.model_validate(settings.model_dump(mode="json") | {"model": {"system_turn": "You are a pirate."}})
    asked: list[str] = []

    def engine_of(name: str) -> Any:
        class Scripted:
            def generate(self, wanted: Any) -> Iterator[Reply]:
                asked.append(name)
                yield from (Reply(one.id, name, 1, False) for one in wanted)

        return Scripted

    def told(run: RunFile, name: str) -> str:
        vault = open_vault(run, tmp_path / "state", items)
        assert vault
        subject = Subject("m", tmp_path / "none", "f" * 64)
        replies, _ = replace(vault, open_engine=None).examine(subject, items, [], engine_of(name))
        return replies[items[0].id].text

    assert [told(settings, "plain"), told(turned, "turned"), told(settings, "again")] == ["plain", "turned", "plain"]
    assert told(with_suites(settings, *settings.evaluate.suites, engine=server), "served") == "served"
    seeded = RunFile.model_validate(settings.model_dump(mode="json") | {"run": {"name": "t", "seed": 9}})
    assert told(seeded, "seeded") == "plain"
    assert asked == ["plain", "turned", "served"]
    look = Look("m", "hidden", "validation", set_digest(items), len(items), True, 1)
    kept = replies_told(turned, tmp_path / "state", look, "f" * 64)
    assert [one.text for one in kept] == ["turned"] * len(items)


def test_a_pick_is_held_against_the_one_before_it(run_file: RunFile, inputs: dict[str, Path], tmp_path: Path) -> None:
    from iar.records import ItemScore, Lineage, Selection, from_json
    from iar.services.non_regression import compare, models_before
    from iar.services.registry import Producer

    settings = with_suites(run_file, suite(tmp_path / "own", non_regression=True))
    items = load_suites(settings)
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")

    def pick(number: int, right: int) -> Any:
        """Compare a pick that has the first `right` of the six, then register it."""
        weights = str(number) * 64
        selection = Selection(f"pick-{number}", "rule", 1.0, (), "v", weights)
        scores = {
            name: [
                ItemScore(name, "hidden", one.id, float(place < count), "") for place, one in enumerate(items["hidden"])
            ]
            for name, count in ((selection.pick, right), ("theta_0", 0))
        }
        (found,) = compare(settings, items, selection, scores, tmp_path / "state", registry)
        made = Lineage(
            "checkpoint", str(number) * 63 + "a", f"iar-demo pick-{number}", {"candidate": "c", "weights": weights}
        )
        registry.record([made], Producer("run", "register", "code", "config", number, 0.0, 1.0))
        return found, made.digest

    first, promoted = pick(1, 6)
    assert first.against.startswith("theta_0") and first.points == 100 and not first.regressed
    second, _ = pick(2, 0)
    assert second.against.startswith("iar-demo pick-1 (111111111111, picked before)")
    assert second.points == -100 and second.regressed and "hidden: pick-2 against" in second.text
    registry.event("promote", "iar-demo@champion", {"lineage": promoted})
    third, _ = pick(3, 6)
    assert "promoted to iar-demo@champion" in third.against and third.points == 0 and not third.regressed
    assert [one.weights[0] for one in models_before(registry, settings, "9" * 64)][:2] == ["1", "3"]
    # What was answered with another system turn, or graded by another panel, is no measure.
    plain, settings = (
        settings,
        RunFile.model_validate(settings.model_dump(mode="json") | {"model": {"system_turn": "Be brief."}}),
    )
    turned, _ = pick(4, 3)
    assert turned.against.startswith("theta_0 (no earlier pick") and not turned.regressed
    settings = with_suites(plain, suite(tmp_path / "own", verifier="judge", non_regression=True))
    items = load_suites(settings)
    assert pick(5, 6)[0].against.startswith("theta_0")
    settings = with_suites(settings, *settings.evaluate.suites, judges=list(reversed(settings.evaluate.judges)))
    assert pick(6, 0)[0].against.startswith("theta_0")
    assert from_json(type(third), vars(third)) == third
    registry.close()
