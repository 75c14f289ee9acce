"""Replay: the share that was asked, the same draw every time, another draw each epoch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.batching import TokenRow, step_batches
from iar.methods.replay import general_share, mixed_epoch, visited_in_order


def rows(objective: str, lengths: list[int]) -> list[TokenRow]:
    return [TokenRow(f"{objective}-{n}", objective, (0,) * (length + 3), 3) for n, length in enumerate(lengths)]


def tokens(found: list[TokenRow], objective: str) -> int:
    return sum(row.target_length for row in found if row.objective == objective)


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=60)
SHARES = st.floats(0, 1)


@given(LENGTHS, LENGTHS, SHARES, st.integers(0, 99), st.integers(0, 9))
def test_an_epoch_trains_the_domains_tokens_with_the_share_asked(
    domain_lengths: list[int], general_lengths: list[int], share: float, seed: int, epoch: int
) -> None:
    domain, general = rows("qa", domain_lengths), rows("replay", general_lengths)
    found = mixed_epoch(domain, general, share, seed, epoch)
    whole = sum(domain_lengths)
    # whole rows come as near as half of the longest one
    assert abs(tokens(found, "replay") - share * whole) <= max(general_lengths) / 2
    assert abs(tokens(found, "qa") - (1 - share) * whole) <= max(domain_lengths) / 2
    assert found == mixed_epoch(domain, general, share, seed, epoch)


@given(LENGTHS, LENGTHS, SHARES)
def test_domain_rows_stay_in_order_and_general_rows_repeat_only_when_all_are_used(
    domain_lengths: list[int], general_lengths: list[int], share: float
) -> None:
    domain, general = rows("qa", domain_lengths), rows("replay", general_lengths)
    found = mixed_epoch(domain, general, share, 7, 0)
    stayed = [row for row in found if row.objective == "qa"]
    assert stayed == [row for row in domain if row in stayed]
    times = Counter(row.id for row in found if row.objective == "replay")
    assert not times or max(times.values()) - (min(times.values()) if len(times) == len(general) else 0) <= 1


def test_no_share_is_the_domain_alone_and_the_whole_share_the_general_data_alone() -> None:
    domain, general = rows("qa", [5, 6, 7]), rows("replay", [4, 4])
    assert mixed_epoch(domain, [], 0.0, 1, 0) == mixed_epoch(domain, general, 0.0, 1, 0) == domain
    assert {row.objective for row in mixed_epoch(domain, general, 1.0, 1, 0)} == {"replay"}


def test_each_epoch_and_each_seed_draws_anew() -> None:
    domain, general = rows("qa", [10] * 40), rows("replay", [10] * 40)
    drawn = {
        tuple(row.id for row in mixed_epoch(domain, general, 0.25, seed, epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(drawn) == 9


def test_a_share_of_no_general_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="replay needs at least one general row"):
        mixed_epoch(rows("qa", [5]), [], 0.5, 1, 0)


def test_the_realised_share_is_counted_in_target_tokens() -> None:
    assert general_share([*rows("qa", [30]), *rows("replay", [10])], "replay") == 0.25


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_one_epoch_of_the_placed_rows_visits_the_epochs_one_after_the_other(count: int, epochs: int, seed: int) -> None:
    domain = rows("qa", list(range(1, count + 1)))
    placed = visited_in_order([domain] * epochs, seed)
    visited = [row for _, batch in step_batches(placed, 5, seed, 1) for row in batch]
    assert visited == [row for _, batch in step_batches(domain, 5, seed, epochs) for row in batch]
