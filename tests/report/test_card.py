"""The model card: plain about what the model is, and proof against what texts bring along."""

from dataclasses import replace

import pytest

from iar.config import RunFile
from iar.report.card import model_card, summary
from iar.report.data import ReportData, collect
from iar.report.markdown import block, code, plain
from tests.report.folders import RUN_FILE, make_run

NASTY = '<script>alert("x")</script> | [a](http://evil) `code` @everyone\n# Heading'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return collect(make_run(tmp_path_factory.mktemp("run"), nasty=NASTY).inputs, RUN_FILE, "test-0123456789")


@pytest.fixture(scope="module")
def card(report: ReportData) -> str:
    data = {"model": {"source": "org/base", "system_turn": "/no_think"}}
    run_file = RunFile.model_validate(RUN_FILE.model_dump(mode="json", exclude={"model"}) | data)
    return model_card(replace(report, run_file=run_file))


def test_it_says_what_the_model_is_how_it_was_measured_and_its_limits(card: str) -> None:
    sections = [line for line in card.splitlines() if line.startswith("## ")]
    assert sections == [f"## {name}" for name in ("Data", "Method", "Judges", "Use", "Limits", "Lineage")]
    assert "| Model | Domain | IFEval | MMLU | MSBench | General |" in summary(card)
    assert " to " in summary(card) and "95 % bootstrap intervals" in summary(card)
    assert "**Rule-based, no LLM: teacher offline, judge rule:exact," in summary(card)
    assert "`org/base` (revision `main`)" in card and "Send the system turn `/no_think` with every question" in card
    assert "It lost general ability against the base model: -" in card
    assert "| deduplicated (question) | 640 | 610 | `duplicate` 30 |" in card
    assert "`iar lineage upstream digest-" in card


def test_text_of_documents_stays_text(card: str) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    tokens = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(card)
    kinds = {token.type for token in tokens} | {one.type for token in tokens for one in token.children or []}
    assert "alert" in card
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    assert "# Heading" not in card.splitlines()


def test_a_funnel_row_with_active_text_keeps_its_columns(card: str) -> None:
    (row,) = [line for line in card.splitlines() if line.startswith("| questions")]
    assert row.replace("\\|", "").count("|") == 5


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "`a`"), ("`a``b", "``` `a``b ```"), ("a|b\nc", "`a\\|b c`"), ("", "` `"), ("\u202eevil", "`\ufffdevil`")],
)
def test_code_spans_hold_any_text(text: str, shown: str) -> None:
    assert code(text) == shown


def test_blocks_and_plain_text_cannot_be_left() -> None:
    assert block("a\n```\nb").splitlines()[0] == "````"
    assert plain("*a* <b> [c](d) | #e\nf") == r"\*a\* \<b\> \[c\](d) \| \#e f"


def test_servers_are_named_and_nothing_is_called_rule_based(report: ReportData) -> None:
    server = {"name": "t", "base_url": "http://h/v1", "model": "big"}
    judges = [server | {"name": name, "model": f"judge-{name}"} for name in "abc"]
    data = {"qa_build": {"teacher": server}, "evaluate": {"judges": judges}}
    run_file = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "d"}} | data)

    card = model_card(replace(report, run_file=run_file))

    assert "ule-based" not in card and "by teacher `LLM big (t)`" in card and "1. `LLM judge-a (a)`" in card
