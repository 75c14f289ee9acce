"""The number of epochs that comes nearest to a budget of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.budget import nearest_epochs

TOKENS = st.integers(1, 10**9)


@given(st.integers(0, 10**10), TOKENS)
def test_no_other_number_of_epochs_comes_nearer(budget: int, epoch: int) -> None:
    found = nearest_epochs(budget, epoch)
    assert found >= 1
    assert abs(found * epoch - budget) <= abs((found + 1) * epoch - budget)
    assert found == 1 or abs(found * epoch - budget) < abs((found - 1) * epoch - budget)


@pytest.mark.parametrize(("budget", "epochs"), [(0, 1), (99, 1), (149, 1), (150, 1), (151, 2), (1405, 14)])
def test_half_an_epoch_rounds_down_and_one_is_the_least(budget: int, epochs: int) -> None:
    assert nearest_epochs(budget, 100) == epochs


def test_an_epoch_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="an epoch of 0 tokens matches no budget"):
        nearest_epochs(100, 0)
