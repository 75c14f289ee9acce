"""The ceilings on what a model may cost: a call is sent only where all of them hold at its dearest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from iar.config import Endpoint
from iar.errors import UserError
from iar.services.llm_answers import Answered, read_usage
from iar.services.llm_http import Body, Exchange
from iar.services.llm_ledger import Ledger
from iar.services.reply_cache import GroupCommit, Spent

_MILLION = 1e6
_CEILINGS = ("budget_calls", "budget_tokens", "budget_money")
_POLL_SECONDS = 0.2
_TEMPLATE_TOKENS = 256  # what a server's chat template may add to a prompt


def money(endpoint: Endpoint, spent: Spent) -> float:
    """Return what tokens cost at the endpoint's prices, in the currency of these."""
    paid = spent.prompt_tokens * endpoint.prompt_price + spent.completion_tokens * endpoint.completion_price
    return paid / _MILLION


def dearest(body: Body) -> Spent:
    """Return the most that a call can cost: no tokenizer makes more than one token of a byte."""
    return Spent(1, len(body.text.encode()) + _TEMPLATE_TOKENS, body.max_tokens)


def billed_tokens(body: Body, exchange: Exchange) -> tuple[int, int]:
    """Return the tokens of prompt and reply that a call cost: by the server's count, at most where it gives none.

    Where nothing came back, the server may have written all that it was allowed to.
    """
    verdict = exchange.verdict
    if isinstance(verdict, Answered) and verdict.prompt_tokens and verdict.completion_tokens:
        return verdict.prompt_tokens, verdict.completion_tokens
    prompt, completion = read_usage(exchange.raw)
    if prompt is not None and completion is not None:
        return prompt, completion
    most = dearest(body)
    written = min(len(exchange.raw.encode()) or most.completion_tokens, most.completion_tokens)
    return most.prompt_tokens if prompt is None else prompt, written if completion is None else completion


class Budget:
    """What the calls under way may still cost, on top of what was spent before: by other runs and processes too."""

    def __init__(self, endpoint: Endpoint, archive: GroupCommit) -> None:
        self._endpoint = endpoint
        self._archive = archive
        self._ceilings = {key: most for key in _CEILINGS if (most := getattr(endpoint, key)) is not None}
        self._ledger = Ledger(archive.books, endpoint.model, endpoint.revision)
        self._reserved = Spent()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, body: Body) -> AsyncIterator[None]:
        """Set aside what a call can cost; waits while only calls under way, here or elsewhere, stand against it.

        Raises UserError where it would not even fit once they are back: the ceiling is reached.
        """
        if not self._ceilings:
            yield
            return
        most = dearest(body)
        while not self._set_aside(most):
            self._freed.clear()
            with suppress(TimeoutError):  # what other processes have back is not told here
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._freed.wait()
        try:
            yield
        finally:
            with self._ledger.held():
                self._reserved += Spent(-most.calls, -most.prompt_tokens, -most.completion_tokens)
                self._ledger.write(self._reserved)
            self._freed.set()

    def _set_aside(self, most: Spent) -> bool:
        """Return whether `most` fits, and then count it. Raises UserError where it never will."""
        with self._ledger.held():
            under_way = self._reserved + self._ledger.others()
            # Read last: a call is counted as spent before it is no more under way.
            self._archive.refresh()
            if passed := self._passed(self._archive.spent + under_way + most):
                if not under_way.calls:
                    raise UserError(self._reached(passed, most))
                return False
            self._reserved += most
            self._ledger.write(self._reserved)
            return True

    def _passed(self, total: Spent) -> str:
        """Return the first ceiling that `total` passes, "" where all hold."""
        much = (total.calls, total.tokens, money(self._endpoint, total))
        total_of = dict(zip(_CEILINGS, much, strict=True))
        return next((key for key, most in self._ceilings.items() if total_of[key] > most), "")

    def _reached(self, key: str, most: Spent) -> str:
        spent = self._archive.spent
        price = f" and {money(self._endpoint, spent):.6g} of money" if key == "budget_money" else ""
        return (
            f"LLM server '{self._endpoint.name}': {key} {self._ceilings[key]:.10g} is reached: model"
            f" '{self._endpoint.model}' has cost {spent.calls} calls, {spent.tokens} tokens{price} in this state"
            f" folder, and the next call may take {most.tokens} tokens; raise {key} and run again, replies so far"
            " are kept"
        )
