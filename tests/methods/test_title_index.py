"""Titles found by their words are those that a search for every title finds."""

import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.title_index import TitleIndex

PIECES = [
    "mill",
    "Mill",
    "MILL",
    "the",
    "The ",
    "a ",
    "Velm",
    " ",
    "  ",
    "-",
    "'",
    "(",
    ")",
    "灯塔",
    "《",
    "》",
    "ß",
    "SS",
]
PIECES += ["ı", "I", "i", "İ", "ſ", "1", "e\u0301", "_", "\n", "."]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def one_title_after_the_other(titles: set[str], text: str) -> set[tuple[str, int, int]]:
    """Return what the index should: all titles tried on the text."""
    found = set()
    for title in titles:
        core = regex.sub(r"^(?:the|a|an)\s", "", title, flags=regex.IGNORECASE)
        if core.casefold() in text.casefold():
            whole = rf"(?<![\w-]){regex.escape(core)}(?![\w-])"
            found |= {(title, *match.span()) for match in regex.finditer(whole, text, regex.IGNORECASE)}
    return found


@given(st.sets(TEXTS, max_size=8), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_the_index_finds_what_a_search_for_each_title_finds(titles: set[str], text: str) -> None:
    found = list(TitleIndex(titles).standing_in(text))
    assert len(found) == len(set(found))
    assert set(found) == one_title_after_the_other(titles, text)


def test_a_title_is_found_without_its_article_in_any_case_and_only_whole() -> None:
    index = TitleIndex(["The Tall Mill", "Velm", "灯塔"])
    text = "A tall mill, not the Tall Mills; VELM-like no, Velm yes, “灯塔”是，灯塔楼不是。"
    assert [(title, text[start:end]) for title, start, end in index.standing_in(text)] == [
        ("The Tall Mill", "tall mill"),
        ("Velm", "Velm"),
        ("灯塔", "灯塔"),
    ]
