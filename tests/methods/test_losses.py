"""The loss of a step is the mean over examples of the mean over target tokens, and so is its gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from iar.methods import losses
from iar.methods.batching import TokenRow
from iar.methods.losses import target_loss
from iar.services.packing import pack_rows


def plain_step_loss(hidden: list[torch.Tensor], head: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    """Mean over examples of torch's own mean cross entropy."""
    means = [functional.cross_entropy(states @ head.t(), ids) for states, ids in zip(hidden, targets, strict=True)]
    return torch.stack(means).mean()


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), chunk=st.integers(1, 9), seed=st.integers(0, 99))
def test_loss_and_gradients_equal_plain_autograd(lengths: list[int], chunk: int, seed: int) -> None:
    torch.manual_seed(seed)
    head = torch.randn(11, 5, requires_grad=True)
    hidden = [torch.randn(length, 5, requires_grad=True) for length in lengths]
    targets = [torch.randint(0, 11, (length,)) for length in lengths]
    expected = plain_step_loss(hidden, head, targets)
    expected.backward()
    expected_grads = [head.grad.clone(), *(states.grad.clone() for states in hidden)]
    head.grad = None
    for states in hidden:
        states.grad = None

    weights = torch.cat([torch.full((length,), 1 / (length * len(lengths))) for length in lengths])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CHUNK_POSITIONS", chunk)
        loss, _ = target_loss(torch.cat(hidden), head, torch.cat(targets), weights)
    loss.backward()

    assert torch.allclose(loss, expected, atol=1e-6)
    for grad, wanted in zip([head.grad, *(states.grad for states in hidden)], expected_grads, strict=True):
        assert torch.allclose(grad, wanted, atol=1e-6)


def test_only_the_states_that_predict_target_tokens_are_trained() -> None:
    # Prompt of 2, target of 3 (the last is the end of turn): states 1, 2, 3 predict tokens 2, 3, 4.
    row = TokenRow("a", "qa", (5, 6, 7, 8, 9), prompt_length=2)
    longer = TokenRow("b", "qa", (1, 2, 3, 4, 5, 6, 7), prompt_length=6)
    packed = pack_rows([row, longer], rows_in_step=4, device=torch.device("cpu"))
    assert packed.ids_1N.tolist() == [[5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7]]
    assert packed.states_P.tolist() == [1, 2, 3, 5 + 5]
    assert packed.targets_P.tolist() == [7, 8, 9, 7]
    assert packed.weights_P.tolist() == pytest.approx([1 / 12] * 3 + [1 / 4])


def test_tokens_that_all_prompts_begin_with_stand_there_once() -> None:
    row = TokenRow("a", "qa", (5, 6, 7, 8, 9), prompt_length=3)
    longer = TokenRow("b", "qa", (5, 6, 7, 1, 2, 3), prompt_length=5)
    packed = pack_rows([row, longer], rows_in_step=2, device=torch.device("cpu"))
    assert packed.ids_1N.tolist() == [[5, 6, 7, 8, 9, 7, 1, 2, 3]], "the last prompt token predicts, so it is no prefix"
    assert packed.position_ids_1N.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 5]]
    assert packed.states_P.tolist() == [2, 3, 7]
    assert packed.packing.padded_BT.tolist() == [[2, 3, 4, 4], [5, 6, 7, 8]]


def test_a_frozen_head_gets_no_gradient_and_the_states_get_the_same() -> None:
    torch.manual_seed(0)
    hidden, targets, weights = torch.randn(6, 5), torch.randint(0, 11, (6,)), torch.full((6,), 1 / 6)
    grads = []
    for trained in (True, False):
        states, head = hidden.clone().requires_grad_(), torch.ones(11, 5, requires_grad=trained)
        target_loss(states, head, targets, weights)[0].backward()
        assert (head.grad is not None) == trained
        grads.append(states.grad)
    assert torch.equal(grads[0], grads[1])
