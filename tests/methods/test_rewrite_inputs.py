"""What rewrite rows show of a document: a part of it, of the kind that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.plain_text import parse_plain
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.records import Anchor, Document

KINDS = ("skeleton", "outline", "summary")
BODY = """The lamp of Velm was built by Tora Lind in 1911.

History

The lamp burns with oil, and the oil comes from Osk. A keeper turns the lamp at dusk. Nobody knows why it is green.

The harbour has a second lamp of brass. It is smaller than the lamp of Velm, and it went out in 1930."""
DOCUMENT = Document("d", "Velm", f"Velm\n\n{BODY}", "velm.md", "text/markdown", "0")
ANCHORS = [Anchor("d.0", "name", "Tora Lind", DOCUMENT.text.index("Tora"), DOCUMENT.text.index("Tora") + 9)]


def made(kind: str) -> list[str]:
    return make_rewrite_input(DOCUMENT, ANCHORS, kind, "offline").text.splitlines()


def test_an_outline_has_headings_and_clauses_and_a_skeleton_key_terms_too() -> None:
    lines = ["Velm", "- The lamp of Velm was built by Tora Lind in 1911", "History", "- The lamp burns with oil"]
    assert made("outline") == lines
    assert made("skeleton")[-1] == "Key terms: Tora Lind"


def test_a_summary_is_the_document_s_own_sentences_in_its_order() -> None:
    title, *sentences = made("summary")
    assert title == "Velm" and len(sentences) >= 2
    places = [DOCUMENT.text.index(sentence) for sentence in sentences]
    assert places == sorted(places) and "History" not in sentences


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=300))
def test_none_is_longer_than_its_share_whatever_the_document(kind: str, text: str) -> None:
    plain = parse_plain(f"T\n\n{text}")
    document = Document("d", plain.title, plain.text, "d.txt", "text/plain", "0")
    one = make_rewrite_input(document, [], kind, "offline")
    assert len(one.text) <= max(0.35 * len(plain.text), len(plain.title))
    assert (one.kind, one.text.splitlines()[:1]) == (kind, ["T"])
