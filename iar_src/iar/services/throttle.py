"""How many calls may be in flight at once to each server, and where the next one goes."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence


class Throttle:
    """A limit on calls in flight to the server at `url`: halved on signs of overload, raised by replies.

    The additive-increase, multiplicative-decrease rule of TCP (Chiu and Jain, 1989): one sign often
    comes with many, so a call that began before the last cut says nothing about the limit after it.
    """

    def __init__(self, url: str, most: int) -> None:
        self.url = url
        self.limit = float(most)
        self.in_flight = 0
        self.last_reply = time.monotonic()
        self.bursts = 0  # cuts since the last reply
        self._most = most
        self._last_cut = float("-inf")
        self._paused_until = 0.0

    def overloaded(self, began: float) -> None:
        """A call that began at `began` (monotonic) met an overload: halve the limit, once a burst."""
        if began < self._last_cut:
            return
        self.limit = max(1.0, self.limit / 2)
        self.bursts += 1
        self._last_cut = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Start no call for so long."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def replied(self) -> None:
        """A call came back: allow a little more, up to the most."""
        self.last_reply = time.monotonic()
        self.bursts = 0
        self.limit = min(float(self._most), self.limit + 1 / self.limit)

    def pause_left(self) -> float:
        """Seconds until the next call may start, as far as the server's pauses go."""
        return max(0.0, self._paused_until - time.monotonic())

    def places(self) -> int:
        """How many more calls the limit allows in flight."""
        return max(0, int(self.limit) - self.in_flight)

    def is_full(self) -> bool:
        """Whether a call must come back before another may start."""
        return not self.places()

    def has_room(self) -> bool:
        """Whether one more call may start now."""
        return not self.is_full() and not self.pause_left()


class Pool:
    """The servers that share the work. Those in trouble come last: one that is down fails its calls fastest."""

    def __init__(self, urls: Sequence[str], most: int) -> None:
        self.servers = [Throttle(url, most) for url in urls]
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken = 0  # who has not looked yet
        self._wake_soon = False

    async def take(self) -> Throttle:
        """Take a place in flight at the server with the most room; waits for a free one and for the end of a pause."""
        while not (free := [server for server in self.servers if server.has_room()]):
            await self._wait_for_change()
        server = min(free, key=lambda one: (one.bursts, one.in_flight / one.limit))
        server.in_flight += 1
        return server

    def give_back(self, server: Throttle) -> None:
        """Free the place of a call that came back; whoever made it may take it again before others are woken."""
        server.in_flight -= 1
        if not self._wake_soon and self._waiting:
            self._wake_soon = True
            asyncio.get_running_loop().call_soon(self._wake)

    async def _wait_for_change(self) -> None:
        # A server that is full waits for its calls, not for its clock; one with room waits for the end of its pause.
        pauses = [server.pause_left() for server in self.servers if not server.is_full()]
        self._waiting.append(woken := asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(min(pauses, default=None)):
                await woken
        except TimeoutError:
            return
        finally:
            self._woken -= woken.done() and not woken.cancelled()

    def _wake(self) -> None:
        """Wake as many as there are places: all of a hundred for each call that comes back cost more than the call.

        Places at a server that pauses count: who is woken for one waits for the end of the pause.
        """
        self._wake_soon = False
        places = sum(server.places() for server in self.servers) - self._woken
        while places > 0 and self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():  # else its time was up
                woken.set_result(None)
                places, self._woken = places - 1, self._woken + 1

    def pause_left(self) -> float:
        """Seconds until the first pause ends; 0 where a server has none."""
        return min(server.pause_left() for server in self.servers)

    def stalled_seconds(self) -> float:
        """Seconds since any call came back."""
        return time.monotonic() - max(server.last_reply for server in self.servers)
