"""Chunks of two documents that name one object."""

from hypothesis import given
from hypothesis import strategies as st

from iar.methods.shared_anchors import Crossing, shared_anchors
from iar.records import Anchor, Chunk


def chunk(name: str) -> Chunk:
    return Chunk(name, name.partition(".")[0], 0, 1, name)


def anchor(chunk_id: str, text: str) -> Anchor:
    return Anchor(chunk_id, "name", text, 0, len(text))


def test_two_documents_that_name_one_object_cross_there() -> None:
    chunks = [chunk(name) for name in ("a.0", "a.1", "b.0", "c.0")]
    anchors = [anchor("a.0", "Tora Lind"), anchor("b.0", "TORA LIND"), anchor("a.1", "Velm"), anchor("c.0", "1911")]
    (found,) = shared_anchors(chunks, anchors, 9)
    assert {found.first.id, found.second.id} == {"a.0", "b.0"} and found.anchor.casefold() == "tora lind"


def test_neither_a_year_nor_one_document_nor_a_chunk_in_another_split_makes_a_crossing() -> None:
    held_out = [chunk("a.0"), chunk("a.1"), chunk("b.0")]
    shared = [("a.0", "1911"), ("b.0", "1911"), ("a.0", "Osk"), ("a.1", "Osk"), ("b.0", "Velm"), ("c.0", "Velm")]
    assert shared_anchors(held_out, [anchor(*one) for one in shared], 9) == []


NAMES = st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from(["Velm", "Osk", "Lind", "Greywether"]))


@given(st.lists(NAMES, max_size=40), st.integers(0, 6))
def test_crossings_are_disjoint_bounded_and_between_documents(named: list[tuple[int, int, str]], most: int) -> None:
    anchors = [anchor(f"d{document}.{number}", text) for document, number, text in named]
    chunks = [chunk(f"d{document}.{number}") for document in range(5) for number in range(4)]
    found = shared_anchors(chunks, anchors, most)
    assert len(found) <= most and found == shared_anchors(chunks[::-1], anchors, most)
    used = [one.id for crossing in found for one in (crossing.first, crossing.second)]
    assert len(used) == len(set(used))
    holds = {(one.chunk_id, one.text) for one in anchors}
    for crossing in found:
        assert isinstance(crossing, Crossing) and crossing.first.document_id != crossing.second.document_id
        assert {(crossing.first.id, crossing.anchor), (crossing.second.id, crossing.anchor)} <= holds
