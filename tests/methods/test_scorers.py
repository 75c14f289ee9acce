"""The scorers of the file filter: what each measures, and that its calibration is what it says."""

from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.config import DocumentsSection, FilterSection
from iar.methods.near_duplicates import SEED, signatures
from iar.methods.scorers import (
    LANGUAGES,
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
TEXTS = {
    "en": "The mill on the northern hill was built in 1846 and has turned ever since.",
    "zh": "灯塔位于东海岸的望潮镇，始建于一八四六年，是当地渔民的重要航标。",
    "de": "Die Mühle auf dem nördlichen Hügel wurde 1846 gebaut und dreht sich seither.",
    "fr": "Le moulin sur la colline du nord fut construit en 1846 et tourne depuis lors.",
    "ja": "灯台は東海岸の町にあり、一八四六年に建てられました。高さは三十メートルです。",
    "ru": "Мельница на северном холме была построена в 1846 году и с тех пор работает.",
}


CALIBRATED = {"en": ("documents", "more-documents"), "zh": ("chinese-documents",)}


def example_texts(language: str) -> list[str]:
    folders = [ROOT / "examples" / name for name in CALIBRATED[language]]
    return [document.text for folder in folders for document in read_documents(DocumentsSection(path=str(folder)))[0]]


@pytest.mark.parametrize("name", CALIBRATED)
def test_every_calibration_is_what_the_scorer_gives_on_the_texts_it_names(name: str) -> None:
    readings = [Reading(text) for text in example_texts(name)]
    grams = [character_ngrams(text) for text in example_texts(name)]
    wanted = FilterSection(languages=(name,))
    nearest = [max((jaccard(one, other) for other in grams[:place]), default=0) for place, one in enumerate(grams)]
    for scorer in (*SCORERS, NEAR_DUPLICATE):
        scores = nearest if scorer is NEAR_DUPLICATE else [scorer.score(reading, wanted) for reading in readings]
        found = [round(value, 4) for value in (min(scores), median(scores), max(scores))]
        (stated,) = [one for one in scorer.calibrations if one.language == name]
        assert all(f"examples/{folder}" in stated.texts for folder in CALIBRATED[name])
        assert stated.documents == len(readings)
        assert [stated.least, stated.median, stated.largest] == found, scorer.name


def test_each_language_with_a_calibration_has_a_response_curve_of_its_own() -> None:
    for scorer in (*SCORERS, NEAR_DUPLICATE):
        assert tuple(one.language for one in scorer.calibrations) == LANGUAGES == tuple(CALIBRATED)


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
        ("首页\n关于我们\n新闻中心\n产品与服务\n联系我们\n" + "灯" * 19, 0.5),
        ("床前明月光\n疑是地上霜\n举头望明月\n低头思故乡", 0.0),  # verse without marks
        ("东岬石上灯初起\n照见归船第几帆\n不问今宵潮大小\n且将新网晒沙滩", 0.0),
        ("关关雎鸠，在河之洲。\n窈窕淑女，君子好逑。\n参差荇菜，左右流之。\n窈窕淑女，寤寐求之。", 0.0),
        ("The mill turns still\nAnd grinds the corn\nOn Velm's old hill\nFrom early morn", 0.0),
        ("该公司于一八九八年注册，次年向盐务所备案，并在镇上开设了三家分号。", 0.0),
        ("请登录后查看全文\n" + "灯" * 8, 0.5),
        ("登录 | 注册\n" + "灯" * 7, 0.5),
        ("灯塔" * 90 + "，转载请注明。", 0.0),  # a paragraph, not a line
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
