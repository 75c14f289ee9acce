import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.question_form import anchor_fault, locate_quote, question_fault


@given(st.text(), st.text(min_size=1).filter(str.strip), st.text())
def test_a_literal_quote_is_found_where_it_stands(before: str, quote: str, after: str) -> None:
    text = before + quote + after
    span = locate_quote(quote, text)
    assert span is not None and text[slice(*span)].split() == quote.split()


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ("the big\nbell", "the  big bell"),
        ("a &lt; b", "a < b"),
        ("The big bell", None),
        ("", None),
        (" ", None),
        ("(", None),
    ],
)
def test_only_space_and_the_escape_may_differ(quote: str, found: str | None) -> None:
    text = "Here the  big bell rings, and a < b."
    span = locate_quote(quote, text)
    assert (text[slice(*span)] if span else None) == found


@pytest.mark.parametrize(
    "anchor",
    [
        "this mechanism",
        "It",
        "the above rule",
        "其方法",
        "!!",
        "one two three four five six seven eight nine ten eleven twelve thirteen",
    ],
)
def test_a_reference_is_no_anchor(anchor: str) -> None:
    assert anchor_fault(anchor)


@pytest.mark.parametrize("anchor", ["Tora Lind", "1911", "Itaipu Dam", "Thistle Law", "天坛"])
def test_a_name_is_an_anchor(anchor: str) -> None:
    assert anchor_fault(anchor) == ""


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ("Who built the harbour of Velm?", ""),
        ("What is the above-ground height of Velm Tower?", ""),
        ("维尔姆港由谁建造？", ""),
        ("Name the builder.", "no question mark at the end"),
        ("According to the text, who built it?", "points at the text"),
        ("How does this method work?", "points at the text"),
        ("What are the results mentioned in the passage?", "points at the text"),
        ("根据本文，谁建造了它？", "points at the text"),
        ("Why" + " so" * 200 + "?", "too long for a question"),
    ],
)
def test_a_question_that_needs_the_document_is_refused_by_its_form(question: str, fault: str) -> None:
    assert question_fault(question) == fault
