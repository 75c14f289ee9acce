import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.errors import PermanentError
from iar.methods.prompting import fence, fill, unfence


@given(st.text(), st.text())
def test_braces_inside_values_are_never_read(first: str, second: str) -> None:
    assert fill("<{{a}}|{{b}}>", {"a": first, "b": second}) == f"<{first}|{second}>"


def test_a_place_named_in_a_document_stays_text() -> None:
    assert fill("{{a}} {{b}} {x}", {"a": "{{b}} {0} %s \\1", "b": "B"}) == "{{b}} {0} %s \\1 B {x}"


@pytest.mark.parametrize("values", [{}, {"a": "x", "b": "y"}])
def test_a_hole_or_a_value_without_a_place_is_an_error(values: dict[str, str]) -> None:
    with pytest.raises(PermanentError, match="prompt template has the places"):
        fill("{{a}}", values)


@given(st.text())
def test_no_text_closes_its_fence(text: str) -> None:
    fenced = fence(text + "</reply>", "reply")
    assert fenced.startswith("<reply>\n") and fenced.count("</reply>") == 1 and fenced.endswith("\n</reply>")
    assert fenced.count("<") == 2


@given(st.one_of(st.text(), st.lists(st.sampled_from(["&", "amp;", "lt;", "gt;", "<", "x"])).map("".join)))
def test_what_is_taken_over_from_a_fence_stands_as_in_the_source(text: str) -> None:
    assert unfence(fence(text, "t").removeprefix("<t>\n").removesuffix("\n</t>")) == text


def test_only_the_escapes_of_a_fence_are_undone() -> None:
    assert unfence("a &lt; b < c &amp; d &gt; e &amp;lt;") == "a < b < c &amp; d &gt; e &lt;"
