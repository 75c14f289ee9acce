"""Suites of the user and tasks of lm-eval: what is asked, how it is graded, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.records import EvalItem, Reply
from iar.services.evaluations import general_evaluations
from iar.services.further_suites import grade_further
from iar.services.lm_eval_tasks import task_items
from iar.services.stage_keys import key_parts
from iar.services.suites import is_judged, load_suites
from iar.services.user_suites import user_items
from tests.examination import examination_run_file

ROWS: dict[str, dict[str, Any]] = {
    "rule:exact": {"prompt": "Who opened it?", "reference": "Tora Lind", "aliases": ["T. Lind"]},
    "regex": {"prompt": "Give the year.", "pattern": r"(?i)\bin 19(11|12)\b"},
    "choice": {"prompt": "Which gas?", "choices": ["helium", "neon", "oxygen"], "answer": "C"},
    "judge": {"prompt": "Explain it.", "reference_points": ["light", "air"]},
}


def suite(folder: Path, verifier: str, rows: list[Any] | None = None, **keys: object) -> Path:
    """Write a suite with one good row, or with `rows`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows or [ROWS[verifier]]]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = {"name": "units", "prompts": "rows.jsonl", "verifier": verifier, "max_tokens": 8} | keys
    path = folder / "units.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()), encoding="utf-8")
    return path


def graded(item: EvalItem, text: str) -> tuple[float | None, str]:
    return grade_further(item, Reply(item.id, text, 3, truncated=False))


@pytest.mark.parametrize(
    ("verifier", "right", "wrong"),
    [
        ("rule:exact", "It was T. Lind.", "It was Ole Berg."),
        ("regex", "It was In 1912.", "It was in 1913."),
        ("choice", "The answer is C.", "B. neon"),
    ],
)
def test_replies_are_graded_without_a_judge(tmp_path: Path, verifier: str, right: str, wrong: str) -> None:
    (item,) = user_items(suite(tmp_path, verifier))
    assert (item.id, item.suite, item.max_new_tokens) == ("units-1", "units", 8)
    assert graded(item, right) == (1, "") and graded(item, wrong) == (0, "")
    assert not is_judged(item)


def test_a_row_numbered_from_0_keeps_its_id(tmp_path: Path) -> None:
    rows = [ROWS["regex"] | {"id": number} for number in (0, 1)] + [ROWS["regex"]]
    path = suite(tmp_path / "own", "regex", rows)
    assert [item.id for item in user_items(path)] == ["units-0", "units-1", "units-3"]
    (units,) = (one for one in general_evaluations(with_suites(tmp_path, suites=(str(path),))) if one.name == "units")
    assert [name for name, _ in units.prompts] == ["0", "1", "3"]


def test_one_id_for_items_of_two_suites_is_refused(tmp_path: Path) -> None:
    """Replies and votes are kept by id: one of the two would be graded by what was said to the other."""
    first = suite(tmp_path / "a", "regex", [ROWS["regex"] | {"id": "b-1"}], name="a")
    second = suite(tmp_path / "b", "rule:exact", [ROWS["rule:exact"] | {"id": 1}], name="a-b")
    message = r"evaluate: .*units\.yaml: a-b-1 is an item of a too; give the suite another name, or its row another id"
    with pytest.raises(UserError, match=message):
        load_suites(with_suites(tmp_path / "general", suites=(str(first), str(second))))


def test_a_choice_without_a_letter_is_marked_and_its_choices_are_shown(tmp_path: Path) -> None:
    (item,) = user_items(suite(tmp_path, "choice"))
    assert graded(item, "No idea.") == (0, "unparsed")
    assert item.prompt.endswith("Which gas?\nA. helium\nB. neon\nC. oxygen")


def test_a_pattern_without_end_leaves_its_reply_unscored(tmp_path: Path) -> None:
    (item,) = user_items(suite(tmp_path, "regex", [{"prompt": "?", "pattern": "(a|aa)+$"}]))
    assert graded(item, "a" * 60 + "b") == (None, "pattern took too long")


def test_the_panel_votes_on_a_judged_suite(tmp_path: Path) -> None:
    (item,) = user_items(suite(tmp_path, "judge"))
    assert is_judged(item) and item.reference["points"] == ["light", "air"]


@pytest.mark.parametrize(
    ("verifier", "rows", "keys", "message"),
    [
        ("regex", [{"prompt": "?", "pattern": "("}], {}, r"rows\.jsonl:1: pattern is '\(': .*; give a regular expr"),
        ("choice", [ROWS["choice"] | {"answer": "D"}], {}, r"rows\.jsonl:1: 3 choices, answer 'D'; give 2 to 4"),
        ("judge", [{"prompt": "?"}], {}, r"rows\.jsonl:1: no 'reference', only prompt; add the key 'reference'"),
        ("regex", [ROWS["regex"] | {"id": "a"}] * 2, {}, r"rows\.jsonl:2: units-a stands there twice"),
        ("regex", ["{"], {}, r"rows\.jsonl:1: not JSON"),
        ("regex", None, {"name": "Units"}, r"units\.yaml: name: .*; see docs/evaluation\.md"),
        ("regex", None, {"temperature": 1}, r"units\.yaml: temperature: Extra inputs are not permitted"),
        ("regex", None, {"prompts": "none.jsonl"}, r"units\.yaml: prompts: no file '.*none\.jsonl'"),
    ],
)
def test_a_malformed_suite_is_refused_with_its_place(
    tmp_path: Path, verifier: str, rows: list[Any] | None, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        user_items(suite(tmp_path, verifier, rows, **keys))


def test_a_missing_suite_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate\.suites: no file '.*none\.yaml' in /.*; give the path of a suite"):
        user_items(tmp_path / "none.yaml")


def with_suites(folder: Path, **evaluate: object) -> RunFile:
    data = examination_run_file(folder).model_dump()
    data["evaluate"] |= evaluate
    return RunFile.model_validate(data)


def test_they_follow_the_suites_that_count_and_training_data_is_checked_against_them(tmp_path: Path) -> None:
    path = suite(tmp_path / "own", "regex")
    run_file = with_suites(tmp_path / "general", suites=(str(path),))
    assert list(load_suites(run_file)) == ["ifeval", "mmlu", "msbench", "units"]
    evaluations = {one.name: one for one in general_evaluations(run_file)}
    assert evaluations["units"].prompts == (("1", "Give the year."),)


def test_a_name_that_another_suite_has_is_refused(tmp_path: Path) -> None:
    path = suite(tmp_path / "own", "regex", name="mmlu")
    with pytest.raises(UserError, match=r"units\.yaml is named 'mmlu', as another suite is; give it another name"):
        load_suites(with_suites(tmp_path / "general", suites=(str(path),)))


def test_other_prompts_behind_the_same_suite_file_are_another_evaluation(tmp_path: Path) -> None:
    path = suite(tmp_path / "own", "regex")
    run_file = with_suites(tmp_path / "general", suites=(str(path),))
    inputs = {"data": "a", "base": "b"}
    before = key_parts("judge_eval", run_file, inputs)
    suite(tmp_path / "own", "regex", [ROWS["regex"], {"prompt": "Again?", "pattern": "x"}])
    assert key_parts("judge_eval", run_file, inputs) != before


def lm_eval_task(folder: Path, **keys: object) -> Path:
    """Write a task in lm-eval's own format over two local documents."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 3?", "answer": "5"}]
    (folder / "documents.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    config = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 7, "do_sample": False},
        "filter_list": [
            {"name": "number", "filter": [{"function": "regex", "regex_pattern": r"(\d+)"}, {"function": "take_first"}]}
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    } | keys
    path = folder / "sums.yaml"
    path.write_text(json.dumps(config))
    return path


def test_a_task_of_lm_eval_keeps_its_prompts_filters_and_metric(tmp_path: Path) -> None:
    path = lm_eval_task(tmp_path / "task")
    items = task_items(str(path), None)
    assert [(item.id, item.suite, item.max_new_tokens) for item in items] == [
        ("sums-0", "sums", 7),
        ("sums-1", "sums", 7),
    ]
    assert items[0].prompt == "Q: 1 + 1?\nA:"
    assert graded(items[0], "It is 2.\nQ: 9") == (1, "")
    assert graded(items[0], "It is\n2") == (0, "")  # what follows the task's own end does not count
    assert graded(items[1], "4") == (0, "")
    run_file = with_suites(tmp_path / "general", lm_eval=(str(path),), lm_eval_limit=1)
    assert [len(one) for one in load_suites(run_file).values()] == [2, 2, 2, 1]
    assert next(one for one in general_evaluations(run_file) if one.name == str(path)).prompts[0][1] == "Q: 1 + 1?\nA:"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("no_such_task", {}, r"'no_such_task' is neither a task of lm-eval nor a task file; lm-eval ls tasks"),
        ("", {"output_type": "loglikelihood", "generation_kwargs": None}, r"is of kind loglikelihood; models answer"),
        ("", {"repeats": 3}, r"wants 3 replies a prompt"),
        ("", {"dataset_kwargs": {"data_files": {"test": "/nowhere.jsonl"}}}, r"cannot load .*sums\.yaml: .*nowhere"),
    ],
)
def test_a_task_that_cannot_be_asked_is_refused(
    tmp_path: Path, name: str, keys: dict[str, object], message: str
) -> None:
    path = lm_eval_task(tmp_path, **keys)
    with pytest.raises(UserError, match=rf"evaluate\.lm_eval: .*{message}"):
        task_items(name or str(path), None)
