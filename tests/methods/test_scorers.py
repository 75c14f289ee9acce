"""The scorers of the file filter: what each measures, and that its calibration is what it says."""

from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.config import DocumentsSection, FilterSection
from iar.methods.near_duplicates import SEED, signatures
from iar.methods.scorers import (
    NEAR_DUPLICATE,
    SCORERS,
    Reading,
    boilerplate,
    language,
    repeated_lines,
    repeated_phrases,
)
from iar.methods.textnorm import character_ngrams, jaccard
from iar.services.ingest import read_documents

ROOT = Path(__file__).parents[2]
DEFAULT = FilterSection()
ENGLISH = FilterSection(languages=("en",))
TEXTS = {
    "en": "The mill on the northern hill was built in 1846 and has turned ever since.",
    "zh": "灯塔位于东海岸的望潮镇，始建于一八四六年，是当地渔民的重要航标。",
    "de": "Die Mühle auf dem nördlichen Hügel wurde 1846 gebaut und dreht sich seither.",
    "fr": "Le moulin sur la colline du nord fut construit en 1846 et tourne depuis lors.",
    "ja": "灯台は東海岸の町にあり、一八四六年に建てられました。高さは三十メートルです。",
    "ru": "Мельница на северном холме была построена в 1846 году и с тех пор работает.",
}


def example_texts() -> list[str]:
    folders = (ROOT / "examples" / "documents", ROOT / "examples" / "more-documents")
    return [document.text for folder in folders for document in read_documents(DocumentsSection(path=str(folder)))[0]]


def test_every_calibration_is_what_the_scorer_gives_on_the_texts_it_names() -> None:
    readings = [Reading(text) for text in example_texts()]
    grams = [character_ngrams(text) for text in example_texts()]
    nearest = [max((jaccard(one, other) for other in grams[:place]), default=0) for place, one in enumerate(grams)]
    for scorer in (*SCORERS, NEAR_DUPLICATE):
        scores = nearest if scorer is NEAR_DUPLICATE else [scorer.score(reading, ENGLISH) for reading in readings]
        found = [round(value, 4) for value in (min(scores), median(scores), max(scores))]
        stated = scorer.calibration
        assert stated.documents == len(readings)
        assert [stated.least, stated.median, stated.largest] == found, scorer.name


def test_every_rule_has_its_threshold_in_the_run_file_and_in_order() -> None:
    settings = [scorer.setting for scorer in (*SCORERS, NEAR_DUPLICATE)]
    assert settings == [name for name in FilterSection.model_fields if name != "languages"]


@pytest.mark.parametrize("name", TEXTS)
def test_languages_are_told_apart(name: str) -> None:
    reading = Reading(TEXTS[name])
    assert reading.language == name
    assert language(reading, FilterSection(languages=(name,))) > 0.5
    other = "en" if name != "en" else "zh"
    assert language(reading, FilterSection(languages=(other,))) < 0.5
    assert language(reading, DEFAULT) == 1.0


@pytest.mark.parametrize("text", ["", "FAQ", "42", "Mill 7"])
def test_a_text_too_short_to_tell_is_of_no_other_language(text: str) -> None:
    assert language(Reading(text), FilterSection(languages=("zh",))) > 0.5


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The mill was built in 1846.\nIt turns.", 0.0),
        ("We use cookies on this site.\n" + "x" * 28, 0.5),
        ("Home\nAbout us\nNews\nJobs\n" + "x" * 61, 20 / 81),
        ("Home\nAbout us\nNews\n\nThe mill turns.", 0.0),  # three lines are no menu
        ("- Home\n- About us\n- News\n- Jobs\n- Press", 0.0),  # a list
        ("Height | 30 m\nWidth | 9 m\nAge | old\nRye | much", 0.0),  # a table
        ("版权所有\n" + "灯" * 4, 0.5),
        ("", 0.0),
    ],
)
def test_boilerplate_is_menus_and_stock_phrases(text: str, share: float) -> None:
    assert boilerplate(Reading(text), DEFAULT) == pytest.approx(share)


def test_repetition_is_counted_by_characters_and_words() -> None:
    assert repeated_lines(Reading("aaaa\nbb\naaaa\n\naaaa"), DEFAULT) == pytest.approx(8 / 14)
    ten = "one two three four five six seven eight nine ten"
    assert repeated_phrases(Reading(f"{ten} and {ten}"), DEFAULT) == pytest.approx(10 / 21)
    assert repeated_phrases(Reading(f"{ten} {ten} {ten}"), DEFAULT) == pytest.approx(20 / 30)
    assert repeated_phrases(Reading(ten[:-4]), DEFAULT) == 0.0


@given(st.text(max_size=400))
def test_every_text_has_a_score_in_its_range(text: str) -> None:
    reading = Reading(text)
    for scorer in SCORERS:
        score = scorer.score(reading, FilterSection(languages=("en", "zh")))
        assert 0 <= score <= (float("inf") if scorer.name == "length" else 1 + 1e-6)


def test_the_seed_of_signatures_is_fixed() -> None:
    """Signatures decide which pairs are compared: another seed or version would change who is found."""
    assert SEED == 1
    assert signatures(["the mill turns"])[0, :3].tolist() == [3369549538, 3234355072, 226882137]
