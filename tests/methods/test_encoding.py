"""The encoding of a file, found over the whole of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.encoding import Decoded, decode

ASCII = "The mill on the northern hill was built in 1846.\n" * 2000
SENTENCES = {
    "gb18030": "灯塔位于东海岸的望潮镇，始建于1846年，是当地渔民的重要航标。",
    "big5": "燈塔位於東海岸的望潮鎮，始建於1846年，是當地漁民的重要航標。",
    "shift_jis": "灯台は東海岸の町にあり、1846年に建てられました。高さは三十メートルです。",
    "euc_kr": "등대는 동해안의 마을에 있으며 1846년에 지어졌습니다. 높이는 삼십 미터이다.",
    "cp1251": "Маяк стоит на восточном берегу у города и был построен в 1846 году.",
    "koi8_r": "Маяк стоит на восточном берегу у города и был построен в 1846 году.",
    "cp1250": "Latarnia morska stoi na wschodnim wybrzeżu. Źródło, żółty, ćma, łódź, świeca.",
    "cp1252": "Die Mühle wurde 1846 auf dem nördlichen Hügel gebaut und gehört heute der Gemeinde.",
}


@pytest.mark.parametrize("encoding", SENTENCES)
@pytest.mark.parametrize("before", ["", ASCII])
def test_legacy_encodings_are_told_apart_even_by_their_last_line(encoding: str, before: str) -> None:
    """A detector that samples a file sees ASCII here, and takes it for anything."""
    text = before + SENTENCES[encoding] + "\n"
    assert decode(text.encode(encoding)) == Decoded(text, encoding)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_utf_8_is_read_back_whole(text: str) -> None:
    assert decode(text.encode()) == Decoded(text, "utf-8") or text.startswith("\ufeff")


def test_a_few_broken_sequences_are_left_out_and_noted() -> None:
    whole = SENTENCES["gb18030"] * 20
    data = whole.encode()
    assert decode(data[:-1]) == Decoded(whole[:-1], "utf-8", "1 broken UTF-8 sequences left out")


@pytest.mark.parametrize("data", [b"\x00\x01\x02\x81\xff", bytes(range(256)) * 8, b"\xff\xfe\x00\xd8" * 9])
def test_what_is_no_text_is_none(data: bytes) -> None:
    assert decode(data) is None


def test_a_declared_charset_counts_where_it_fits() -> None:
    text = "Маяк стоит."
    assert decode(text.encode("koi8_r"), "KOI8-R") == Decoded(text, "koi8-r")
    assert decode(text.encode(), "koi8-r") == Decoded(text, "utf-8")
    assert decode("灯塔位于东海岸的望潮镇。".encode("gbk"), "gb2312") == Decoded("灯塔位于东海岸的望潮镇。", "gb18030")
    assert decode(b"plain", "no-such-charset") == Decoded("plain", "utf-8")
