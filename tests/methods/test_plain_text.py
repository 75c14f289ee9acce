"""Markup to plain text: what stays, what goes, what the title is."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.plain_text import PlainText, join_lines, parse_html, parse_markdown, parse_plain


def test_markdown_keeps_the_words_and_drops_the_markers() -> None:
    text = """---
author: nobody
---
# The *Tall* Mill

Built by [Tora Lind](https://example.org "home") in **1846**,
of `oak` and snake_case_wood. ![A plan](plan.png)
<!-- hidden -->

## Parts ##
> A quoted line.

- one *small* wheel
- two stones

```
crank = 3
```

| part | weight |
| --- | --- |
| bell | 90 kg |
"""
    assert parse_markdown(text) == PlainText(
        "The Tall Mill",
        (
            "Built by Tora Lind in 1846, of oak and snake_case_wood. A plan",
            "Parts",
            "A quoted line.",
            "- one small wheel\n- two stones",
            "```\ncrank = 3\n```",
            "part | weight",
            "bell | 90 kg",
        ),
    )


def test_markdown_with_underlined_headings() -> None:
    assert parse_markdown("The Mill\n========\nIt turns.\n\nParts\n-----\nA wheel.") == PlainText(
        "The Mill", ("It turns.", "Parts", "A wheel.")
    )


def test_markdown_without_a_heading_takes_its_first_paragraph_as_title() -> None:
    assert parse_markdown("The Mill\n\nIt turns.") == PlainText("The Mill", ("It turns.",))


def test_html_drops_boilerplate_and_keeps_text_outside_blocks() -> None:
    markup = """<html><head><title>Mill | Site</title><style>p {}</style></head><body>
    <header>Menu</header><nav><a href="/">Home</a></nav>
    <h1>The <em>Tall</em> Mill</h1>Loose words.<p>It turns<br>slowly &amp; well.</p>
    <ul><li>one wheel</li><li>two stones</li></ul>
    <table><tr><th>Part</th><th>Weight</th></tr><tr><td>Bell</td><td>90 kg</td></tr></table>
    <script>track()</script><footer>Contact</footer></body></html>"""
    assert parse_html(markup) == PlainText(
        "The Tall Mill",
        ("Loose words.", "It turns slowly & well.", "- one wheel", "- two stones", "Part | Weight", "Bell | 90 kg"),
    )


@pytest.mark.parametrize("tag", ["main", "article"])
def test_html_keeps_every_part_that_is_marked_as_content(tag: str) -> None:
    one, two = f"<{tag}><p>It turns.</p><article><p>A note.</p></article></{tag}>", f"<{tag}><p>It stands.</p></{tag}>"
    assert parse_html(f"<body><h1>Mill</h1><div>Ads</div>{one}</body>").paragraphs == ("It turns.", "A note.")
    assert {"It turns.", "A note.", "It stands."} <= {*parse_html(f"<h1>Mill</h1>{one}{two}").paragraphs}


def test_html_without_h1_uses_the_title_element() -> None:
    assert parse_html("<title>Mill</title><p>It turns.</p>") == PlainText("Mill", ("It turns.",))


def test_hard_wrapped_and_hyphenated_lines_are_joined() -> None:
    assert parse_plain("The Mill\r\n\r\nIt was re-\r\nbuilt by Tora\r\nLind.") == PlainText(
        "The Mill", ("It was rebuilt by Tora Lind.",)
    )


def test_the_lines_of_a_paragraph_are_joined_by_what_stands_at_their_ends() -> None:
    lines = ["a-", "b", "-", "c", "X-", "", "Y", "塔", "-", "d", "- e", "f -", "g", "1-", "h", "i-", "j-", "k"]
    assert join_lines(lines) == "ab - c X- Y 塔d\n- e f - g 1- h ijk"


def test_a_paragraph_may_have_a_hundred_thousand_lines() -> None:
    """A log or a scan without blank lines: work that grows with the square of the lines would not end."""
    lines = 100_000
    (paragraph,) = parse_plain("Log\n\n" + "The bell was re-\nhung at noon\n" * (lines // 2)).paragraphs
    assert paragraph == " ".join(["The bell was rehung at noon"] * (lines // 2))


def test_wide_characters_are_joined_without_a_space() -> None:
    assert parse_plain("灯塔\n\n灯塔高\n四十七米。").paragraphs == ("灯塔高四十七米。",)


@given(st.text(max_size=200))
def test_any_text_parses_and_no_paragraph_is_empty(text: str) -> None:
    for parse in (parse_plain, parse_markdown, parse_html):
        plain = parse(text)
        assert all(part.strip() for part in plain.paragraphs)


@pytest.mark.parametrize("parse", [parse_plain, parse_markdown])
def test_a_title_is_a_short_line_set_apart_and_not_the_beginning_of_hard_wrapped_prose(
    parse: Callable[[str], PlainText],
) -> None:
    wrapped = "The mill on the northern hill\nof Velm was built in 1846\nby Tora Lind."
    prose = "The mill on the northern hill of Velm was built in 1846 by Tora Lind."
    assert parse(wrapped) == PlainText("", (prose,))
    assert parse(f"{wrapped}\n\nIt turns.") == PlainText("", (prose, "It turns."))
    assert parse(f"The Mill\n \n{wrapped}") == PlainText("The Mill", (prose,))
    assert parse(f"{'long ' * 50}\n\n{wrapped}").title == ""
    assert parse_markdown(f"{wrapped}\n\n# The Mill\n\nIt turns.").title == "The Mill"


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("*a **b** c*", "a b c"),
        ("**a *b* c**", "a b c"),
        ("2*3*4 and a_b_c", "2*3*4 and a_b_c"),
        ("* a*", "* a*"),
        (r"\*kept\*", "*kept*"),
        ("*open _and* closed_", "open _and closed_"),
        ("[![Alt](img.png)](https://velm.example/a_(b))", "Alt"),
        ("[a [b](u)", "[a b"),
        ("<!-- gone --> kept <!-- open", "kept <!-- open"),
    ],
)
def test_inline_marks_are_removed_in_pairs_only(marked: str, plain: str) -> None:
    assert parse_markdown(f"# T\n\nx {marked}").paragraphs == (f"x {plain}",)
