"""The lineage page: nested as the tree is, escaped, bounded, and self-contained."""

import re
from pathlib import Path

from iar.methods.one_page import with_lineage
from iar.report.lineage_page import MOST_ROWS, tree, write_lineage_page
from iar.services.lineage import Row
from iar.services.workspace import Ref
from tests.finished_run import Finished

NASTY = '</li><script>alert("1")</script>\x1b[31m\u202e'


def rows(count: int) -> list[Row]:
    below = [Row(2, "contains", "qa", f"q{number}", f"qa:{number:012}") for number in range(count)]
    return [
        Row(0, "", "candidate", "ties-d0.3", "candidate:aaaaaaaaaaaa"),
        Row(1, "tuned", "checkpoint", NASTY, "checkpoint:bbbbbbbbbbbb", f"withdrawn {NASTY}"),
        Row(2, "trained-on", "dataset", "qa", "dataset:cccccccccccc"),
        Row(3, "drawn-from", "document", "24 entries", ""),
        *below,
        Row(1, "base", "checkpoint", "theta_0", "checkpoint:dddddddddddd"),
    ]


def test_the_page_nests_its_rows_and_shows_hostile_names_as_text(tmp_path: Path) -> None:
    page = write_lineage_page(tmp_path, rows(3), "r-1").read_text(encoding="utf-8")

    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<li>") == page.count("</li>") == 8 and page.count("<ul") == page.count("</ul>") == 4
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "withdrawn &lt;/li&gt;" in page and "document: 24 entries" in page
    assert page.index("dataset:cccccccccccc") < page.index("24 entries") < page.index("theta_0")
    assert "rows are left out" not in page
    assert re.findall(r'(?:src|href|action)="([^"]*)"', page) == ["report.html"]
    assert "default-src 'none'; style-src 'sha256-" in page and " style=" not in page


def test_a_large_run_is_cut_and_says_so(tmp_path: Path) -> None:
    page = write_lineage_page(tmp_path, rows(5 * MOST_ROWS), "r-1").read_text(encoding="utf-8")

    assert page.count("<li>") == MOST_ROWS and f"{4 * MOST_ROWS + 5:,} more rows are left out" in page


def test_shown_alone_the_report_holds_the_tree_and_links_to_nothing_beside_it(finished: Finished) -> None:
    """Kubeflow's UI shows the page by itself."""
    ref = next(stage["ref"] for stage in finished.status["stages"] if stage["task"] == "register")
    report, lineage = (
        (Ref.parse(ref).path / name).read_text(encoding="utf-8") for name in ("report.html", "lineage.html")
    )
    assert 'href="lineage.html"' in report

    page = with_lineage(report, lineage)
    assert 'href="lineage.html"' not in page and 'href="report.html"' not in page
    assert page.count('<ul class="tree">') == 1 and page.count("<ul") == page.count("</ul>")
    assert lineage.partition('<ul class="tree">')[2].partition("</main>")[0].strip() in page
    assert with_lineage(report, "") == report


def test_a_row_stands_below_the_last_one_that_is_less_deep() -> None:
    (top,) = tree(rows(1))
    assert [node.row.role for node in top.below] == ["tuned", "base"]
    assert [node.row.role for node in top.below[0].below] == ["trained-on", "contains"]
    assert tree([]) == []
