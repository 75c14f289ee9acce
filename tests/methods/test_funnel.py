"""The account of the QA build in Markdown."""

from collections import Counter

import pytest

from iar.errors import PermanentError
from iar.methods.funnel import check_funnel, funnel_table
from iar.methods.teaching import funnel_step
from iar.records import FunnelStep, Reject


def test_no_reason_is_markup_or_ends_its_cell() -> None:
    hostile = "no column <img src=x onerror=alert(1)> | [a](http://x)\n# `b`"
    table = funnel_table([FunnelStep("documents", "document", 3, 2, {hostile: 1}, {"failed": 1})])
    (row,) = table.splitlines()[2:]
    assert row.replace("\\|", "").count("|") == 10
    assert r"no column \<img src=x onerror=alert(1)\> \| \[a\](http://x) \# \`b\` 1" in row


def test_what_vanishes_between_what_came_in_and_what_was_kept_is_an_error() -> None:
    dropped = [
        Reject("questions", "c:0-4", "not drawn", "Where?"),
        Reject("proposed", "c:5-9", "no reply", "", "", "failed"),
    ]
    on_record = Counter((one.step, one.reason) for one in dropped)
    check_funnel([funnel_step("questions", "question", 1, dropped, in_=2)], on_record)
    with pytest.raises(PermanentError, match=r"funnel step questions: 3 in, 1 kept, \{'not drawn': 1\} dropped"):
        check_funnel([funnel_step("questions", "question", 1, dropped, in_=3)], on_record)


def test_a_reply_that_failed_is_an_anchor_without_questions_and_no_question() -> None:
    failed = [Reject("proposed", "c:5-9", "no reply", "", "", "failed")]
    proposed = funnel_step("proposed", "anchor", 1, failed, in_=2)
    assert proposed.outcomes == {"failed": 1}
    check_funnel([proposed, funnel_step("questions", "question", 5, failed)], {("proposed", "no reply"): 1})
