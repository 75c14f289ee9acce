"""The ceilings on what a model may cost: a call is sent only where all of them hold at its dearest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from iar.config import Endpoint
from iar.errors import UserError
from iar.services.reply_cache import GroupCommit, Spent

_MILLION = 1e6
_TEMPLATE_TOKENS = 256  # what a server's chat template may add to a prompt


def money(endpoint: Endpoint, spent: Spent) -> float:
    """Return what tokens cost at the endpoint's prices, in the currency of these."""
    paid = spent.prompt_tokens * endpoint.prompt_price + spent.completion_tokens * endpoint.completion_price
    return paid / _MILLION


def dearest(endpoint: Endpoint, request: str) -> Spent:
    """Return the most that a call can cost: no tokenizer makes more than one token of a byte."""
    return Spent(1, len(request.encode()) + _TEMPLATE_TOKENS, endpoint.max_tokens)


class Budget:
    """What the calls under way may still cost, on top of what was spent before, by other runs too."""

    def __init__(self, endpoint: Endpoint, archive: GroupCommit) -> None:
        self._endpoint = endpoint
        self._archive = archive
        self._reserved = Spent()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, request: str) -> AsyncIterator[None]:
        """Set aside what a call can cost; waits while only the calls under way stand against it.

        Raises UserError where it would not even fit once they are back: the ceiling is reached.
        """
        most = dearest(self._endpoint, request)
        async with self._changed:
            while passed := self._passed(self._archive.spent + self._reserved + most):
                if not self._reserved.calls:
                    raise UserError(self._reached(passed, most))
                await self._changed.wait()
            self._reserved += most
        try:
            yield
        finally:
            self._reserved += Spent(-most.calls, -most.prompt_tokens, -most.completion_tokens)
            async with self._changed:
                self._changed.notify_all()

    def _passed(self, total: Spent) -> str:
        """Return the first ceiling that `total` passes, "" where all hold."""
        ceilings = {
            "budget_calls": (total.calls, self._endpoint.budget_calls),
            "budget_tokens": (total.tokens, self._endpoint.budget_tokens),
            "budget_money": (money(self._endpoint, total), self._endpoint.budget_money),
        }
        return next((key for key, (much, most) in ceilings.items() if most is not None and much > most), "")

    def _reached(self, key: str, most: Spent) -> str:
        spent = self._archive.spent
        price = f" and {money(self._endpoint, spent):.6g} of money" if key == "budget_money" else ""
        return (
            f"LLM server '{self._endpoint.name}': {key} {getattr(self._endpoint, key):.10g} is reached: model"
            f" '{self._endpoint.model}' has cost {spent.calls} calls, {spent.tokens} tokens{price} in this state"
            f" folder, and the next call may take {most.tokens} tokens; raise {key} and run again, replies so far"
            " are kept"
        )
