"""Budget match: how often to repeat the questions so that as many tokens are trained as in Inject + Align."""


def nearest_epochs(budget_tokens: int, epoch_tokens: int) -> int:
    """Return the whole number of epochs, one at least, whose tokens come nearest to the budget; the smaller of two.

    Raises ValueError where an epoch trains nothing.
    """
    if epoch_tokens <= 0:
        raise ValueError(f"an epoch of {epoch_tokens} tokens matches no budget")
    fewer = budget_tokens // epoch_tokens
    surplus = budget_tokens - fewer * epoch_tokens
    return max(1, fewer if 2 * surplus <= epoch_tokens else fewer + 1)
