"""What rewrite rows show of a document: a part of it, of the kind that was asked for."""

from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.lexicon import FUNCTION_WORDS
from iar.methods.plain_text import parse_plain
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.methods.textnorm import words_of
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


def plain_summary(title: str, sentences: list[str], budget: int) -> list[str]:
    """Return what a summary should: SumBasic with every sentence scored anew before each choice."""
    words = [[word for word in words_of(sentence) if word not in FUNCTION_WORDS] for sentence in sentences]
    counts = Counter(word for own in words for word in own)
    weight = {word: count / counts.total() for word, count in counts.items()}
    taken: list[int] = []
    left, room = set(range(len(sentences))), budget - len(title)
    while fitting := [place for place in left if words[place] and len(sentences[place]) < room]:
        best = max(fitting, key=lambda place: (fmean(weight[word] for word in words[place]), -place))
        weight |= {word: weight[word] ** 2 for word in set(words[best])}
        taken.append(best)
        left.discard(best)
        room -= len(sentences[best]) + 1
    return [title, *(sentences[place] for place in sorted(taken))]


@given(st.lists(st.lists(st.sampled_from(["mill", "Velm", "oak", "lamp", "the", "1911"]), max_size=5), max_size=30))
def test_a_summary_takes_the_sentences_that_scoring_all_anew_takes(drawn: list[list[str]]) -> None:
    sentences = [" ".join(words).capitalize() + "." for words in drawn if words]
    text = "T\n\n" + "\n".join(sentences)
    document = Document("d", "T", text, "d.txt", "text/plain", "0")
    made = make_rewrite_input(document, [], "summary", "offline").text
    assert made == "\n".join(plain_summary("T", sentences, int(0.35 * len(text))))


@given(st.lists(st.text("ab ", min_size=1, max_size=9), max_size=12))
def test_key_terms_are_as_many_as_there_is_room_for(terms: list[str]) -> None:
    document = Document("d", "T", "T\n\n" + "x" * 400, "d.txt", "text/plain", "0")
    anchors = [Anchor("d.0", "name", term, place, place) for place, term in enumerate(terms)]
    text = make_rewrite_input(document, anchors, "skeleton", "offline").text
    shown = text.partition("Key terms: ")[2].split("; ") if "Key terms" in text else []
    unique = list(dict.fromkeys(terms))
    assert shown == unique[: len(shown)]
    left = unique[len(shown) : len(shown) + 1]
    assert len(text) <= 0.35 * len(document.text) < len(text) + sum(2 + len(term) for term in left) + 200 * (not left)
