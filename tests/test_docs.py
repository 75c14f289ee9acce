"""The documentation beside the code: the run file reference is current, links lead somewhere, commands exist."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar.config import ColumnsSection, Endpoint, EngineServer, FilterSection, PoolSection, RunFile, Section
from iar.errors import ExitCode
from iar.report.run_file_reference import MEANINGS, render_reference

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "run-file.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "images" / "README.md"]
MOST_LINES = 120

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def sections() -> Iterator[tuple[str, Any]]:
    for name, field in RunFile.model_fields.items():
        yield name, field.annotation
    yield "documents.columns", ColumnsSection
    yield "documents.filter", FilterSection
    yield "evaluate.engine", EngineServer
    yield "platform.pool", PoolSection
    yield "An LLM server", Endpoint


def command_lines(page: Path) -> Iterator[str]:
    """Yield the lines of indented blocks and of code spans that call iar."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^ {4,}(iar [^\n#]*)|`(iar [^`]*)`", text, re.MULTILINE):
        yield (match[1] or match[2]).strip()


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_run_file_reference_is_current() -> None:
    if os.environ.get("IAR_UPDATE_DOCS"):
        REFERENCE.write_text(render_reference(), encoding="utf-8")
    assert REFERENCE.read_text(encoding="utf-8") == render_reference(), "set IAR_UPDATE_DOCS=1 and run again"


@pytest.mark.parametrize(("name", "model"), list(sections()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_key_is_listed_with_its_default_and_a_meaning(name: str, model: Any) -> None:
    part = re.split(r"^## ", REFERENCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (table,) = [text for text in part if text.startswith(f"{name}\n")]
    rows = [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in table.splitlines() if row.startswith("| `")]
    listed = {row[0].strip("`"): row[2:] for row in rows}
    assert list(listed) == list(model.model_fields)
    for key, field in model.model_fields.items():
        default, meaning = listed[key]
        assert len(meaning) > 5, f"{name}.{key} has no meaning"
        if field.is_required():
            assert default == "required"
        elif isinstance(field.default, Section):
            assert default == "theirs"
        else:
            shown = field.default if field.default != () else []
            found = "" if default == "empty" else yaml.safe_load(default.strip("`"))
            assert found == (list(shown) if isinstance(shown, tuple) else shown) or float(found) == shown


def test_a_meaning_stands_in_one_place() -> None:
    described = {key for _, model in sections() for key, field in model.model_fields.items() if field.description}
    known = {key for _, model in sections() for key in model.model_fields}
    assert not described & set(MEANINGS)
    assert set(MEANINGS) <= known


@each_page
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.is_file(), target
        assert not heading or heading in anchors(linked), target


@each_page
def test_pages_are_short(page: Path) -> None:
    # The reference is as long as there are keys.
    if page != REFERENCE:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    import typer

    from iar.cli import app

    top: Any = typer.main.get_command(app)
    for line in command_lines(page):
        command, words = top, shlex.split(line)[1:]
        while words and getattr(command, "commands", None):
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_run_files_in_the_documentation_are_valid(tmp_path: Path) -> None:
    from iar.services.run_files import load_run_file
    from iar.services.yaml_source import parse_yaml

    checked = 0
    for page in PAGES:
        for indent, block in re.findall(r"^( *)```yaml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S):
            lines = [line.removeprefix(indent) for line in block.splitlines()]
            whole = {"run": {"name": "x"}, "documents": {"path": "x"}} | parse_yaml("\n".join(lines), page.name).data
            path = tmp_path / f"{checked}.yaml"
            path.write_text(yaml.safe_dump(whole, allow_unicode=True))
            load_run_file(path)
            checked += 1
    assert checked == 14


def test_every_exit_code_is_explained() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert explained == {*map(int, ExitCode), 130}


def test_the_grid_and_the_tolerance_of_the_method_page_are_the_defaults() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    run_file = RunFile.model_validate({"run": {"name": "x"}, "documents": {"path": "x"}})
    rows = [
        row.rpartition("| ")[2].removesuffix(" |").split() for row in re.findall(r"^\| \w+ [twdp] \|.*$", text, re.M)
    ]
    recover = run_file.recover
    grid = [recover.slerp_t, recover.task_arithmetic_weight, recover.ties_density, recover.dare_drop]
    assert [tuple(map(float, row)) for row in rows] == grid
