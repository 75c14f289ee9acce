"""How many calls may be in flight at once, and when the next may start."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Throttle:
    """A limit on calls in flight that halves on a burst of refusals and grows back with each reply.

    The additive-increase, multiplicative-decrease rule of TCP (Chiu and Jain, 1989): one refusal
    often comes with many, so refusals inside one pause count once.
    """

    def __init__(self, most: int) -> None:
        self.limit = float(most)
        self._most = most
        self._in_flight = 0
        self._paused_until = 0.0
        self._last_reply = time.monotonic()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the places in flight; waits for a free one and for the end of a pause."""
        async with self._changed:
            while self._in_flight >= int(self.limit) or self._pause_left() > 0:
                await self._wait_for_change()
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _wait_for_change(self) -> None:
        pause = self._pause_left()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout=pause if pause > 0 else None)
        except TimeoutError:
            return

    def _pause_left(self) -> float:
        return self._paused_until - time.monotonic()

    def refused(self, pause_seconds: float) -> None:
        """The server asked for fewer calls: pause all new ones, halve the limit once a burst."""
        if self._pause_left() <= 0:
            self.limit = max(1.0, self.limit / 2)
        self._paused_until = max(self._paused_until, time.monotonic() + pause_seconds)

    def replied(self) -> None:
        """A call came back: allow a little more, up to the most."""
        self._last_reply = time.monotonic()
        self.limit = min(float(self._most), self.limit + 1 / self.limit)

    def stalled_seconds(self) -> float:
        """Seconds since any call came back."""
        return time.monotonic() - self._last_reply
