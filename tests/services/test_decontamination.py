"""Datasets against evaluations: one line each, what was not checked is said, and a blind check fails the run."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.errors import PermanentError, UserError
from iar.methods.contamination import Evaluation, PromptIndex, TrainingText
from iar.records import Reject
from iar.services.decontamination import (
    check_lines,
    decontaminate,
    read_checks,
    read_hits,
    unchecked,
    write_checks,
)
from iar.services.evaluations import dataset_texts, file_evaluation, general_evaluations
from iar.services.reject_log import read_rejects
from tests.test_cli import call

BREAD = "Name three kinds of bread that are baked in an oven without any yeast at all."
FRENCH = Evaluation("french", (("f1", "What is the capital of France?"),))
BAKING = Evaluation("baking", (("b1", BREAD),))


def texts(*prompts: str) -> list[TrainingText]:
    return [TrainingText(str(number), prompt, "answer") for number, prompt in enumerate(prompts)]


def test_every_evaluation_has_a_line_those_without_a_hit_too() -> None:
    found = decontaminate("rows", texts("what is the capital of france", "Sing."), [FRENCH, BAKING])
    assert list(check_lines(found.checks)) == [
        f"rows against french: 1 of 2 items give away one of 1 prompts (sha256 {FRENCH.digest[:12]}, 2 planted leaks "
        "found)",
        f"rows against baking: 0 of 2 items give away one of 1 prompts (sha256 {BAKING.digest[:12]}, 3 planted leaks "
        "found)",
    ]
    assert unchecked(found.checks, ["french", "baking"]) == {}


@pytest.mark.parametrize(
    ("evaluation", "items", "why"),
    [
        (Evaluation("suite", ()), texts("a"), "it has no prompts"),
        (Evaluation("suite", (("1", "🙂"), ("2", "?!"))), texts("a"), "none of its 2 prompts has a word"),
        (Evaluation("suite", (), unread="no network"), texts("a"), "no network"),
        (replace(FRENCH, name="suite"), [], "the dataset is empty"),
    ],
)
def test_where_nothing_could_be_checked_nothing_is_called_clean(
    evaluation: Evaluation, items: list[TrainingText], why: str
) -> None:
    found = decontaminate("rows", items, [evaluation])
    assert list(check_lines(found.checks)) == [f"rows against suite: UNCHECKED: {why}"]
    assert unchecked(found.checks, ["suite", "other"]) == {
        "suite": f"rows: {why}",
        "other": "no check is on record",
    }


def test_a_check_that_misses_its_planted_leak_fails_the_run() -> None:
    blind = PromptIndex([replace(FRENCH, prompts=BAKING.prompts)])
    with pytest.raises(
        PermanentError, match=r"the planted leak \(whole of french\) was not found, so nothing is known"
    ):
        decontaminate("rows", texts("a"), [FRENCH], blind)


def test_what_is_dropped_names_rule_and_prompt_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    rows = texts("Sing.", "what is the capital of france", f"Please: {BREAD}", "Dance.")
    found = decontaminate("rows", rows, [FRENCH, BAKING])
    kept, rejects = found.divide(rows, "step")
    assert kept == [rows[0], rows[3]]
    assert rejects == [
        Reject(
            "step", "1", "gives away a prompt of french (exact)", rows[1].prompt, FRENCH.prompts[0][1], "contaminated"
        ),
        Reject("step", "2", "gives away a prompt of baking (8-gram)", rows[2].prompt, BREAD, "contaminated"),
    ]
    write_checks(tmp_path, [found])
    assert read_checks(tmp_path) == list(found.checks)
    assert [(hit.text, hit.prompt) for hit in read_hits(tmp_path)] == [
        (reject.text, reject.counterpart) for reject in rejects
    ]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_choices_make_a_question_and_a_stem_of_many_is_none(tmp_path: Path) -> None:
    stem = "Which of the following is true?"
    rows = [{"question": stem, "choices": [f"a{n}", "b", "c", "d"]} for n in range(400)]
    rows += [{"question": "Which gas do plants breathe?", "choices": ["a", "b", "c", "d"]}]
    suite = file_evaluation(write(tmp_path / "suite.jsonl", *rows), "--against")
    found = decontaminate("rows", texts(f"Say {stem} Now.", "which gas do plants breathe", f"{stem} a7 b c d"), [suite])
    assert [hit.item_id for hit in found.hits] == ["1", "2"]


@pytest.mark.parametrize(
    ("row", "prompt", "text"),
    [
        ({"prompt": "p", "target": "t"}, "p", "t"),
        ({"question": "q", "answer": "a"}, "q", "a"),
        ({"instruction": "i", "input": "c", "output": "o"}, "i", "o\nc"),
        ({"text": "plain"}, "", "plain"),
        ({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v"}]}, "u", "v"),
    ],
)
def test_rows_of_any_dataset_are_read(tmp_path: Path, row: dict[str, object], prompt: str, text: str) -> None:
    (read,) = dataset_texts(write(tmp_path / "rows.jsonl", row))
    assert (read.id, read.prompt, read.text) == ("1", prompt, text)


def test_the_command_keeps_clean_rows_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write(tmp_path / "suite.jsonl", {"prompt": BREAD})
    rows = write(tmp_path / "rows.jsonl", {"prompt": "Sing."}, {"prompt": f"Now {BREAD}", "answer": "Rye."})
    with rows.open("a", newline="") as file:
        file.write('\n{"text":  "spaced"}\r\n')
    code, printed, error = call(capsys, "decontaminate", rows, "--against", suite, "-o", tmp_path / "out")
    assert (code, error) == (0, "")
    assert printed.splitlines()[0].startswith(f"{rows} against {suite}: 1 of 3 items give away one of 1 prompts")
    assert printed.splitlines()[1].startswith("line 2: ") and BREAD in printed.splitlines()[1]
    assert (tmp_path / "out/kept.jsonl").read_bytes() == b'{"prompt": "Sing."}\n{"text":  "spaced"}\r\n'
    (dropped,) = read_rejects(tmp_path / "out/rejects.parquet")
    assert (dropped.item_id, dropped.counterpart) == ("2", BREAD)
    found = json.loads(call(capsys, "decontaminate", rows, "--against", suite, "--json")[1])
    assert [check["hits"] for check in found["checks"]] == [1] and len(found["hits"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rows.jsonl",), "decontaminate: nothing to check against; give --run RUN.yaml, or --against EVAL.jsonl"),
        (("none.jsonl", "--against", "suite.jsonl"), "dataset: no file 'none.jsonl' in {folder}; give the path of a"),
        (("rows.jsonl", "--against", "none.jsonl"), "--against: no file 'none.jsonl' in {folder}; give the path of a"),
        (("rows.jsonl", "--against", "bad.jsonl"), "bad.jsonl:1: keys title; give one of prompt, question, instr"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    write(tmp_path / "suite.jsonl", {"prompt": BREAD})
    write(tmp_path / "rows.jsonl", {"prompt": "Sing."})
    write(tmp_path / "bad.jsonl", {"title": "no prompt"})
    monkeypatch.chdir(tmp_path)
    code, printed, error = call(capsys, "decontaminate", *arguments, "-o", "out")
    assert (code, printed) == (2, "") and not (tmp_path / "out").exists()
    assert error.startswith("error: " + message.format(folder=tmp_path)) and error.count("\n") == 1


def test_a_suite_whose_hub_does_not_answer_is_unread_and_a_missing_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    sections = {"run": {"name": "t"}, "documents": {"path": "d"}}
    suites = general_evaluations(RunFile.model_validate(sections | {"evaluate": {"mmlu": "cais/mmlu"}}))
    unread = {suite.name: suite.unread for suite in suites}
    assert unread.pop("mmlu").startswith("evaluate.mmlu: cais/mmlu is a hub id, and the package datasets is missing")
    assert unread == {"ifeval": "", "msbench": ""}
    with pytest.raises(UserError, match=r"^evaluate\.mmlu: no file 'no\.jsonl' in"):
        general_evaluations(RunFile.model_validate(sections | {"evaluate": {"mmlu": "no.jsonl"}}))
    with pytest.raises(UserError, match=r"^qa_build\.evals: no file 'no\.jsonl' in"):
        general_evaluations(RunFile.model_validate(sections | {"qa_build": {"evals": ["no.jsonl"]}}))


def test_a_dataset_is_checked_against_a_run_whose_questions_are_not_made_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, run_yaml = write(tmp_path / "rows.jsonl", {"prompt": "Sing."}), tmp_path / "run.yaml"
    run_yaml.write_text(f"run: {{name: t, state: {tmp_path / 'state'}}}\ndocuments: {{path: examples/documents}}\n")
    code, printed, _ = call(capsys, "decontaminate", rows, "--run", run_yaml)
    lines = printed.splitlines()
    assert code == 0 and len(lines) == 5
    assert lines[0].startswith(f"{rows} against validation: UNCHECKED: run t-")
    assert lines[2].startswith(f"{rows} against ifeval: 0 of 1 items give away")


SHARED = Path(__file__).parents[3] / "shared" / "benchmarks"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark data is not beside this checkout")
def test_a_leak_of_every_prompt_of_the_real_suites_is_found() -> None:
    for name in ("ifeval/input_data.jsonl", "mmlu/test.jsonl"):
        suite = file_evaluation(SHARED / name, "--against")
        index = PromptIndex([suite])
        for number, (prompt_id, prompt) in enumerate(suite.prompts):
            item = TrainingText("x", "", f"We were asked this. {prompt} We had no answer." if number % 2 else prompt)
            short = len(prompt.split()) < 7
            assert short or prompt_id in {hit.prompt_id for hit in index.find(item)}, prompt
