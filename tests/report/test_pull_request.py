"""The comment under a pull request, made by the command that CI calls."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from iar import cli
from iar.config import RunFile
from iar.report.pull_request import comment


def run_file(**sections: Any) -> RunFile:
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "examples/documents"}} | sections)


def test_it_says_what_changes_and_that_another_run_starts() -> None:
    old, new = run_file(), run_file(inject={"epochs": 5}, baselines={"recipes": ["lora"]})
    text = comment(new, "tasks:\n- lora\n", old, "tasks:\n", "no documents here")

    assert text.startswith(f"### `{new.run_id}`\n\nAnother run than `{old.run_id}`: merging starts it")
    assert "| `inject.epochs` | `3` | `5` |" in text and '| `baselines.recipes` | `[]` | `["lora"]` |' in text
    assert "**Cost:** not estimated: `no documents here`" in text
    assert "```diff\n--- before\n+++ after" in text and "+- lora" in text


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (None, "A new run file: merging starts its run."),
        (run_file(), "The same run: merging starts nothing."),
        (run_file(run={"name": "t", "rerun": 3}), "The same run once more: repetition 0."),
    ],
)
def test_it_says_what_merging_does(old: RunFile | None, said: str) -> None:
    assert said in comment(run_file(), "a", old, "a", "x")


def test_what_stands_in_a_value_stays_a_value() -> None:
    evil = "x`</details>\n```\n@team <img src=x>|"
    text = comment(run_file(model={"source": evil}), f"a: {evil}", run_file(), "a", evil)

    (row,) = [line for line in text.splitlines() if line.startswith("| `model.source`")]
    assert row.replace("\\|", "").count("|") == 4
    assert "````diff" in text and text.rstrip().endswith("</details>")
    assert "not estimated: ````x`</details> ``` @team <img src=x>\\|````" in text


def test_a_long_diff_is_cut_and_says_so() -> None:
    text = comment(run_file(), "\n".join("b" * 500 for _ in range(900)), run_file(), "a", "x")
    assert len(text) < 65_536 and " more lines are left out." in text


@pytest.mark.parametrize("place", [0, 150, 210, 1200, 2499])
def test_of_long_lines_the_part_is_shown_where_they_differ(place: int) -> None:
    before = "x" * 2500
    after = before[:place] + "y" + before[place + 1 :]
    text = comment(run_file(), f"a\nnew {before}\n{after}", run_file(), f"a\n{before}", "x")

    removed = [line[1:] for line in text.splitlines() if line.startswith("-x") or line.startswith("-...")]
    added = [line[1:] for line in text.splitlines() if line.startswith("+") and "y" in line]
    assert len(removed) == len(added) == 1 and len(added[0]) < 210
    assert removed != added and removed[0] == added[0].replace("y", "x")


def test_the_command_writes_the_comment_beside_the_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / f"{name}.yaml" for name in ("old", "new")}
    for name, path in paths.items():
        data = run_file(align={"epochs": 2 if name == "old" else 4}).model_dump(mode="json")
        path.write_text(yaml.safe_dump(data))
    out, note = tmp_path / "p.yaml", tmp_path / "comment.md"
    arguments = ["compile", str(paths["new"]), "-o", str(out)]

    assert cli.call([*arguments, "--against", str(paths["old"]), "--comment", str(note)]) == 0
    assert capsys.readouterr().out == f"{out}\n{note}\n"
    text = note.read_text()
    assert "| `align.epochs` | `2` | `4` |" in text and "| `inject` |" in text and "Assumed:" in text
    assert not list(tmp_path.glob("*.part"))
    out.unlink()
    assert cli.call([*arguments, "--against", str(paths["old"])]) == 2
    assert capsys.readouterr().err == "error: --against: is for a comment; give --comment with it\n"
    assert cli.call([*arguments, "--comment", str(tmp_path / "x.txt")]) == 2
    assert "not the name of a Markdown file; give one that ends in .md" in capsys.readouterr().err
    assert not out.exists()
