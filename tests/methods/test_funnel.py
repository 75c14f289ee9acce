"""The account of the QA build in Markdown."""

from iar.methods.funnel import funnel_table
from iar.records import FunnelStep


def test_no_reason_is_markup_or_ends_its_cell() -> None:
    hostile = "no column <img src=x onerror=alert(1)> | [a](http://x)\n# `b`"
    table = funnel_table([FunnelStep("documents", "document", 3, 2, {hostile: 1}, {"failed": 1})])
    (row,) = table.splitlines()[2:]
    assert row.replace("\\|", "").count("|") == 10
    assert r"no column \<img src=x onerror=alert(1)\> \| \[a\](http://x) \# \`b\` 1" in row
