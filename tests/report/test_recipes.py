"""Controls and baselines in the report: their own points, and the table in the form of the paper's tables 1 and 2."""

import json
import re
from base64 import b64decode
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.console import print_results
from iar.methods.paired import paired
from iar.records import ItemScore, read_records
from iar.report.data import ReportData, collect, results_json
from iar.report.html import render
from iar.report.plots import BASELINES, REFERENCES
from iar.report.tables import BASELINES as MEANINGS
from iar.report.tables import RECIPE_TITLES, recipe_lines, results_markdown
from iar.services.stage_keys import RECIPES
from tests.report.folders import NASTY, RUN_FILE, Made, add_baselines, make_run
from tests.report.test_report import RUN_ID, Page

WITH_RECIPES = RunFile.model_validate(
    RUN_FILE.model_dump() | {"baselines": {"recipes": ["replay", "fapm", "vanilla-sft"]}}
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_run(tmp_path_factory.mktemp("run"))
    add_baselines(made)
    return made


@pytest.fixture(scope="module")
def report(made: Made) -> ReportData:
    return collect(made.inputs, WITH_RECIPES, RUN_ID)


@pytest.fixture(scope="module")
def page(report: ReportData) -> Page:
    return Page(render(report))


def test_the_table_has_a_row_for_each_reference_each_recipe_and_the_pick(report: ReportData) -> None:
    pick = report.selection.pick
    assert [row.name for row in report.recipes] == [
        "theta_0", "vanilla-sft", "replay", "fapm", "Inject + Align", f"IAR: {pick}",
    ]  # fmt: skip
    assert {row.scores.split for row in report.recipes} == {"test"}


def test_tokens_are_those_trained_up_to_a_model_and_compared_with_inject_and_align(report: ReportData) -> None:
    tokens = {row.scores.model: (row.target_tokens, row.ratio) for row in report.recipes}
    assert tokens.pop("theta_0") == (0, 0.0)
    assert tokens.pop("vanilla") == (90_000, 0.5)
    assert tokens.pop("replay") == (45_000, 0.25)
    assert tokens.pop("fapm") == (90_000, 0.5)
    assert set(tokens.values()) == {(180_000, 1.0)}


def test_gains_are_paired_with_vanilla_over_the_same_items(report: ReportData, made: Made) -> None:
    gains = {row.scores.model: row.gains for row in report.recipes}
    assert gains["vanilla"] == {} and set(gains["replay"]) == {"domain", "general"}
    tested = made.inputs["locked_test"]
    ours, theirs = (list(read_records(tested / name / "items.jsonl", ItemScore)) for name in ("replay", "vanilla"))
    assert gains["replay"]["domain"] == paired("domain", ("domain",), ours, theirs, 2000, 17)
    difference = gains["replay"]["general"]
    assert difference.points == pytest.approx(
        next(row.scores.general for row in report.recipes if row.name == "replay")
        - next(row.scores.general for row in report.recipes if row.name == "vanilla-sft")
    )


def test_page_and_commands_show_one_table(report: ReportData, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    from iar.console import open_console

    results = json.loads(json.dumps(results_json(report)))
    lines = recipe_lines(results)
    assert [len(line) for line in lines] == [len(RECIPE_TITLES)] * 6
    assert lines[2][0] == "replay" and lines[2][-2:] == ["45,000", "0.25"] and lines[1][6:8] == ["-", "-"]
    assert re.fullmatch(r"[+-]\d+\.\d \([+-].* to [+-].*\)", lines[2][6])
    assert all(cell in page.text for line in lines for cell in line)
    assert "replay share 0.1034" in page.text and MEANINGS["replay"] in page.text

    print_results(open_console(), results)
    printed = capsys.readouterr().out
    assert "Recipes on test; ratio: trained tokens to those of Inject + Align" in printed
    assert all(lines[2][column] in printed for column in (1, 5, 6, 8))
    markdown = results_markdown(results).splitlines()
    assert f"| {' | '.join(lines[3])} |" in markdown


def test_baselines_stand_beside_the_references_everywhere_else(report: ReportData, page: Page) -> None:
    assert [scores.model for scores in report.validation][:5] == ["theta_0", "vanilla", "theta_IA", "replay", "fapm"]
    assert [training.model for training in report.baseline_trainings] == ["replay"]
    frontier = next(attributes for tag, attributes in page.tags if tag == "img")
    assert "replay " in (frontier["alt"] or "")
    assert report.front == collect_without(report)


def collect_without(report: ReportData) -> tuple[str, ...]:
    """The front as the selector wrote it, which no baseline may enter."""
    return tuple(name for name in report.front if name not in report.baselines)


def test_each_baseline_is_a_point_of_its_own_in_the_figure(report: ReportData) -> None:
    page = Page(render(report))
    image = next(attributes for tag, attributes in page.tags if tag == "img")
    assert b"<svg" in b64decode((image["src"] or "").split(",")[1])
    assert set(BASELINES) == set(RECIPES) == set(MEANINGS)
    markers = [*BASELINES.values(), *(marker for _, _, marker in REFERENCES.values())]
    assert len(set(markers)) == len(markers)


def test_no_text_of_a_baseline_becomes_markup(report: ReportData) -> None:
    assert NASTY not in render(report)


def test_without_a_pick_the_table_is_that_of_validation(tmp_path: Path) -> None:
    made = make_run(tmp_path, feasible=False)
    add_baselines(made)
    report = collect(made.inputs, WITH_RECIPES, RUN_ID)
    assert {row.scores.split for row in report.recipes} == {"validation"}
    assert [row.name for row in report.recipes][-1] == "Inject + Align"
    text = Page(render(report)).text
    assert "Recipes on validation" in text and "Locked test" not in text
    assert "| replay | " in results_markdown(results_json(report))


def test_only_vanilla_asked_needs_no_baseline_folder(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    asked = RunFile.model_validate(RUN_FILE.model_dump() | {"baselines": {"recipes": ["vanilla-sft"]}})
    names = [row.name for row in collect(made.inputs, asked, RUN_ID).recipes]
    assert names[:3] == ["theta_0", "vanilla-sft", "Inject + Align"] and len(names) == 4


def test_no_recipe_asked_leaves_page_and_results_as_they_are(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    report = collect(made.inputs, RUN_FILE, RUN_ID)
    assert report.recipes == report.baselines == report.baseline_trainings == ()
    assert "recipes" not in results_json(report)
    assert "Controls and baselines" not in Page(render(report)).text
