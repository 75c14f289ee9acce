"""The raw stream: every token once, in windows of nearly one length."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.raw_stream import raw_stream, stream_rows

BOS, EOS = 1, 2
DOCUMENTS = st.lists(st.lists(st.integers(10, 400), max_size=60), min_size=1, max_size=8)


def test_documents_stand_one_after_the_other_between_bos_and_eos() -> None:
    assert raw_stream([(11, 12), (13,)], BOS, EOS) == [BOS, 11, 12, EOS, BOS, 13, EOS]
    assert raw_stream([(11, 12), (13,)], None, EOS) == [11, 12, EOS, 13, EOS]


@given(DOCUMENTS, st.sampled_from([BOS, None]), st.integers(2, 40))
def test_every_token_but_the_first_is_a_target_exactly_once(
    documents: list[list[int]], bos: int | None, window: int
) -> None:
    stream = raw_stream(documents, bos, EOS)
    if len(stream) < 2:
        return
    rows = stream_rows(stream, window)
    assert [token for row in rows for token in row.token_ids[row.prompt_length :]] == stream[1:]
    assert rows[0].token_ids[0] == stream[0]
    # the context of a window is the token before it
    assert all(row.token_ids[0] == before.token_ids[-1] for before, row in pairwise(rows))


@given(st.integers(2, 3000), st.integers(2, 300))
def test_windows_are_few_and_equally_long_up_to_one_token(length: int, window: int) -> None:
    rows = stream_rows(range(length), window)
    sizes = {len(row.token_ids) for row in rows}
    assert max(sizes) <= window and max(sizes) - min(sizes) <= 1 and min(sizes) >= 2
    assert len(rows) == -(-(length - 1) // (window - 1))
    assert len({row.id for row in rows}) == len(rows)


@pytest.mark.parametrize(("length", "window"), [(1, 8), (0, 8), (9, 1)])
def test_nothing_to_predict_is_refused(length: int, window: int) -> None:
    with pytest.raises(ValueError, match="has nothing to predict"):
        stream_rows(range(length), window)
