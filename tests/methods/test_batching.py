"""Every row is visited once an epoch, none is lost to windows or micro-batches, none is without a target."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.batching import LEAST_WINDOW, TokenRow, micro_batches, rank_parts, step_batches, window_rows
from iar.methods.objectives import RECONSTRUCTION
from iar.records import Example, Reject

EXAMPLE = Example("e", "qa", "doc", "prompt", "target")
ROWS = st.lists(st.integers(2, 40), min_size=1, max_size=30).map(
    lambda lengths: [TokenRow(str(n), "qa", (0,) * length, 1) for n, length in enumerate(lengths)]
)


@given(ROWS, st.integers(1, 9), st.integers(0, 5), st.integers(1, 3))
def test_each_epoch_visits_every_row_once(rows: list[TokenRow], batch_size: int, seed: int, epochs: int) -> None:
    steps = list(step_batches(rows, batch_size, seed, epochs))
    assert steps == list(step_batches(rows, batch_size, seed, epochs))
    for epoch in range(epochs):
        seen = sorted(row.id for number, batch in steps if number == epoch for row in batch)
        assert seen == sorted(row.id for row in rows)
    assert all(len(batch) <= batch_size for _, batch in steps)


@given(ROWS, st.integers(1, 100))
def test_micro_batches_keep_all_rows_within_the_token_bound(rows: list[TokenRow], bound: int) -> None:
    batches = list(micro_batches(rows, bound))
    assert sorted(row.id for batch in batches for row in batch) == sorted(row.id for row in rows)
    for batch in batches:
        assert len(batch) == 1 or sum(len(row.token_ids) for row in batch) <= bound


@given(ROWS, st.integers(1, 100))
def test_padded_micro_batches_keep_padding_within_the_token_bound(rows: list[TokenRow], bound: int) -> None:
    batches = list(micro_batches(rows, bound, padded=True))
    assert sorted(row.id for batch in batches for row in batch) == sorted(row.id for row in rows)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(row.token_ids) for row in batch) <= bound


@given(ROWS, st.integers(1, 5))
def test_ranks_get_every_row_once_and_about_equal_work(rows: list[TokenRow], ranks: int) -> None:
    parts = rank_parts(rows, ranks)
    assert len(parts) == ranks
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in rows)
    tokens = [sum(len(row.token_ids) for row in part) for part in parts]
    assert max(tokens) - min(tokens) <= max(len(row.token_ids) for row in rows)


@pytest.mark.parametrize(("tokens", "prompt_length"), [(3, 3), (3, 4), (3, 0)])
def test_a_row_without_prompt_or_target_cannot_be_made(tokens: int, prompt_length: int) -> None:
    with pytest.raises(ValueError, match=rf"row a: prompt of {prompt_length} in 3 tokens leaves no target"):
        TokenRow("a", "qa", (1,) * tokens, prompt_length)


@given(st.integers(1, 30), st.integers(1, 60), st.integers(16, 64))
def test_windows_cover_the_target_and_end_the_turn_once(prompt: int, target: int, sequence: int) -> None:
    prompt_ids, target_ids = [1] * prompt, list(range(10, 10 + target))
    rows = window_rows(EXAMPLE, prompt_ids, target_ids, end_id=2, sequence_length=sequence)
    if isinstance(rows, Reject):
        room = sequence - prompt
        assert room < 2 or (room < LEAST_WINDOW * sequence and target + 1 > room)
        return
    assert [token for row in rows for token in row.token_ids[row.prompt_length :]] == [*target_ids, 2]
    assert all(len(row.token_ids) <= sequence and row.target_length > 0 for row in rows)
    assert len(rows) == -(-(target + 1) // (sequence - prompt))
    lengths = [row.target_length for row in rows]
    assert max(lengths) - min(lengths) <= 1, "no short last window that weighs as much as a long one"
    assert [(row.window, row.windows) for row in rows] == [(n, len(rows)) for n in range(1, len(rows) + 1)]


def test_a_prompt_that_fills_the_sequence_is_dropped_with_the_reason() -> None:
    reject = window_rows(EXAMPLE, [1] * 20, [3], 2, sequence_length=20)
    assert isinstance(reject, Reject) and reject.reason == "prompt fills the sequence"


def test_a_long_prompt_is_not_repeated_for_many_short_windows() -> None:
    reject = window_rows(EXAMPLE, [1] * 4090, [3] * 3000, 2, sequence_length=4096)
    assert isinstance(reject, Reject) and reject.reason == "prompt leaves little room for a long target"
    assert not isinstance(window_rows(EXAMPLE, [1] * 4090, [3] * 5, 2, sequence_length=4096), Reject)


@pytest.mark.parametrize("objective", RECONSTRUCTION)
def test_a_reconstruction_is_one_row_or_none(objective: str) -> None:
    example = replace(EXAMPLE, objective=objective)
    (row,) = window_rows(example, [1] * 10, [3] * 9, 2, sequence_length=20)
    assert isinstance(row, TokenRow) and len(row.token_ids) == 20
    assert isinstance(window_rows(example, [1] * 10, [3] * 10, 2, sequence_length=20), Reject)


def test_an_empty_target_is_dropped_with_the_reason() -> None:
    reject = window_rows(EXAMPLE, [1], [], 2, sequence_length=20)
    assert isinstance(reject, Reject) and reject.reason == "target has no tokens"
