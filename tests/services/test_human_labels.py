"""People beside the judges: what they are shown, what a spreadsheet may not run, and what their labels say."""

import csv
import io
from pathlib import Path

import pytest

from iar import cli
from iar.config import RunFile
from iar.errors import UserError
from iar.methods.attacks import OWN_WRONG_ANSWERS, Posed
from iar.records import EvalItem, Reply, write_json, write_records
from iar.services.human_labels import (
    COLUMNS,
    PANEL,
    compare_with_people,
    draw_sample,
    judged_replies,
    read_labels,
    sample_csv,
)
from iar.services.judges import open_judges, vote, write_votes
from iar.services.run_files import load_run_file
from iar.services.scoring import JUDGED_ITEMS, REPLIES, VOTES
from iar.services.verifier_runs import find_judge, own_wrong_answers, read_questions
from iar.services.workspace import Manifest, Outcome, Workspace, stored_files

ITEMS = [
    EvalItem(f"q{n}", "domain", f"Who keeps lamp {n}?", 8, {"reference": "Tora Lind", "aliases": ["T. Lind"]})
    for n in range(20)
]
OPEN = EvalItem("m1", "msbench", "Why is the sky blue?", 8, {"reference": "", "points": ["scattering", "light"]})
FORMULA = '=HYPERLINK("http://example.com","Tora Lind")'


def text_of(number: int) -> str:
    return ("Tora Lind", "Bram Lusk", "Lind", FORMULA)[number % 4]


@pytest.fixture
def run_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file whose judge-eval is done: two models, which answer alike but for one reply."""
    monkeypatch.delenv("IAR_STATE", raising=False)
    path = tmp_path / "x.yaml"
    path.write_text(f"run: {{name: x, state: {tmp_path / 'state'}}}\ndocuments: {{path: none}}\n")
    run_file = load_run_file(path)
    workspace = Workspace.of(run_file)
    work = workspace.work("judge-eval-references", "k" * 64)
    for model, last in (("theta_0", "It is the air."), ("vanilla", "Scattering of light.")):
        (folder := work / model).mkdir(parents=True)
        replies = {item.id: Reply(item.id, text_of(n), 3, False) for n, item in enumerate(ITEMS)}
        replies[OPEN.id] = Reply(OPEN.id, last, 5, False)
        write_records(folder / REPLIES, replies.values())
        write_votes(folder / VOTES, vote(model, [*ITEMS, OPEN], replies, open_judges(run_file, tmp_path)).votes)
    write_records(work / JUDGED_ITEMS, [*ITEMS, OPEN])
    outcome = Outcome({}, "")
    workspace.publish(
        Manifest("judge-eval-references", "judge_eval", "k" * 64, {}, "c", 0.0, 1.0, stored_files(work), outcome)
    )
    tasks = workspace.run(run_file.run_id) / "tasks"
    tasks.mkdir(parents=True)
    write_json(tasks / "judge-eval-references.json", {"ref": str(workspace.ref("judge-eval-references", "k" * 64))})
    return path


def evaluated(run_yaml: Path) -> tuple[RunFile, Path]:
    run_file = load_run_file(run_yaml)
    return run_file, Workspace.of(run_file).artifact("judge-eval-references", "k" * 64)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.call([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))


def test_equal_replies_are_shown_once_without_model_or_score(run_yaml: Path) -> None:
    replies = judged_replies([evaluated(run_yaml)[1]])
    assert len(replies) == len(ITEMS) + 2
    rows = rows_of(sample_csv(draw_sample(replies, 100, 1)))
    assert len(rows) == len(replies) and tuple(rows[0]) == COLUMNS
    assert all(row["label"] == "" and "theta_0" not in str(row) and "vanilla" not in str(row) for row in rows)
    assert {row["reference"] for row in rows} == {"Tora Lind / T. Lind", "• scattering\n• light"}


def test_no_cell_is_a_formula(run_yaml: Path) -> None:
    rows = rows_of(sample_csv(draw_sample(judged_replies([evaluated(run_yaml)[1]]), 100, 1)))
    assert sum(row["reply"] == "'" + FORMULA for row in rows) == 5
    assert not [cell for row in rows for cell in row.values() if cell.lstrip().startswith(("=", "+", "-", "@"))]


def test_no_id_is_a_number_that_a_spreadsheet_would_write_in_another_way(run_yaml: Path) -> None:
    """One of digits alone, such as 1234567890123456 or 12345678901e3456, comes back as 1.23457E+15."""
    run_file, folder = evaluated(run_yaml)
    replies = judged_replies([folder])
    assert not [one.id for one in replies if one.id[0].isdigit()]
    # A sample from before, whose ids had no letter in front, still comes back.
    labels = {one.id: 1.0 for one in replies}
    before = {name.removeprefix("r-"): label for name, label in labels.items()}
    assert compare_with_people(run_file, replies, before, "l") == compare_with_people(run_file, replies, labels, "l")


def test_every_stratum_is_in_the_sample(run_yaml: Path) -> None:
    replies = judged_replies([evaluated(run_yaml)[1]])
    drawn = draw_sample(replies, 12, 1)
    assert len(drawn) == 12 and drawn == draw_sample(replies, 12, 1) != draw_sample(replies, 12, 2)
    assert {one.item.suite for one in draw_sample(replies, 20, 1)} == {"domain", "msbench"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\r\n1,2\r\n", "no columns id and label, only a, b"),
        ("id,label\r\n1,\r\n", "no row has a label; write 0, 0.5 or 1"),
        ("id,label\r\n1,1\r\n2,yes\r\n", ":3: label 'yes'; write 0, 0.5 or 1, or leave it empty"),
        (b"id,label\r\n\xff,1\r\n", "not a CSV file in UTF-8"),
        (None, "not a CSV file in UTF-8: [Errno 2] No such file"),
    ],
)
def test_a_file_without_labels_is_refused(tmp_path: Path, text: str | bytes | None, told: str) -> None:
    path = tmp_path / "labels.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as refused:
        read_labels(path)
    assert told in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_labels_are_read_as_spreadsheets_save_them(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text('\ufeff"id";"reply";"label"\r\n"a";"x; y\n=z";"0,5"\r\n"b";"";1\r\n"c";"";\r\n', encoding="utf-8")
    assert read_labels(path) == {"a": 0.5, "b": 1.0}


def test_a_panel_that_scores_as_people_do_agrees_fully(run_yaml: Path) -> None:
    run_file, folder = evaluated(run_yaml)
    replies = judged_replies([folder])
    labels = {one.id: 1.0 if "Lind" in one.text or "Scatter" in one.text else 0.0 for one in replies}
    found = {one.judge: one for one in compare_with_people(run_file, replies, labels, "labels.csv")}
    assert list(found) == [*run_file.evaluate.judges, PANEL] and found["rule:exact"].answers == len(replies)
    assert found[PANEL].exact.value is not None and found[PANEL].exact.value < 1  # people credit "Lind", rules half
    with pytest.raises(UserError, match=r"labels\.csv: 'stranger' is no reply of run x-\w+, nor are 0 others"):
        compare_with_people(run_file, replies, {"stranger": 1.0}, "labels.csv")


def test_a_sample_goes_out_and_comes_back(run_yaml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "labels.csv"
    assert call(capsys, "verifier", "sample", run_yaml, "-o", out, "-n", 10)[:2] == (
        0, f"{out}: 10 replies; write 0, 0.5 or 1 into the column label\n",
    )  # fmt: skip
    written = out.read_bytes()
    code, _, error = call(capsys, "verifier", "sample", run_yaml, "-o", out)
    assert (code, out.read_bytes()) == (2, written) and "is there already, perhaps with labels" in error

    rows = rows_of(written.decode())
    for row in rows:
        row["label"] = "1" if "Tora Lind" in row["reply"] else "0"
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.DictWriter(file, COLUMNS).writeheader()
        csv.DictWriter(file, COLUMNS).writerows(rows)
    code, table, _ = call(capsys, "verifier", "agreement", run_yaml, out)
    assert code == 0 and [line.split()[0] for line in table.splitlines()] == [
        "Judge", "rule:exact", "rule:token-f1", "rule:char-ngram", "panel",
    ]  # fmt: skip


def test_a_run_without_judgements_is_told_apart(
    run_yaml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = call(capsys, "verifier", "sample", run_yaml, "-o", tmp_path / "l.csv", "--set", "run.seed=3")
    assert code == 2 and "has judged nothing yet; start it with iar run" in error


def test_wrong_answers_of_a_run_attack_its_judges(run_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = list(own_wrong_answers(evaluated(run_yaml)[0]))
    # The formula holds the right name, so it is no attack, whatever it scored.
    assert {text for _, text in own} <= {"Bram Lusk", "It is the air.", FORMULA} and len(own) >= 5
    code, printed, _ = call(capsys, "verifier", "audit", "rule:exact", "--from", run_yaml)
    assert code == 0 and OWN_WRONG_ANSWERS in printed and "admitted: rule:exact may judge (2 % allowed)" in printed


def test_a_verifier_that_nobody_knows_is_named(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    code, _, error = call(capsys, "verifier", "audit", "judge-a")
    assert code == 2 and "no verifier 'judge-a'; there are rule:exact" in error and "--run RUN.yaml" in error
    server = '{name: judge-a, base_url: "http://127.0.0.1:1", model: m}'
    run_yaml.write_text(run_yaml.read_text() + f"evaluate: {{judges: [rule:exact, rule:token-f1, {server}]}}\n")
    assert find_judge("judge-a", load_run_file(run_yaml)).name == "judge-a"
    code, printed, _ = call(capsys, "verifier", "list", "--run", run_yaml)
    assert code == 0 and [line.split()[0] for line in printed.splitlines()[1:]] == [
        "rule:exact", "rule:token-f1", "rule:char-ngram", "judge-a",
    ]  # fmt: skip


def test_questions_come_from_any_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"question": "Who?", "reference": "Lind", "aliases": ["T. Lind"]}\n'
        '{"prompt": "Why?", "reference_points": ["light"], "reference": "Because."}\n'
        '{"question": "When?", "answer": "In 1911.", "key": "1911", "aliases": []}\n'
    )
    assert read_questions(path) == [
        Posed("1", "Who?", ("Lind", "T. Lind")),
        Posed("2", "Why?", (), ("light",)),
        Posed("3", "When?", ("1911",)),
    ]
    path.write_text('{"question": "Who?"}\n')
    with pytest.raises(UserError, match=r"q\.jsonl:1: no 'reference', only question; add the key 'reference'"):
        read_questions(path)
    with pytest.raises(UserError, match="no such file; give a JSONL file of questions"):
        read_questions(tmp_path / "none.jsonl")
