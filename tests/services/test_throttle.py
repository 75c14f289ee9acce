"""Places in flight: none is given out twice, none is forgotten, and nobody is woken in vain."""

import asyncio
import random
import time

import pytest

from iar.services.throttle import Pool, Throttle


def test_a_call_that_comes_back_wakes_no_more_than_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = Throttle.has_room

    def counted(server: Throttle) -> bool:
        nonlocal looks
        looks += 1
        return look(server)

    async def one(pool: Pool) -> None:
        server = await pool.take()
        await asyncio.sleep(0)
        pool.give_back(server)

    async def all_of_them() -> None:
        pool = Pool(["a"], 4)
        await asyncio.gather(*(one(pool) for _ in range(400)))

    monkeypatch.setattr(Throttle, "has_room", counted)
    asyncio.run(all_of_them())
    assert looks <= 3 * 400  # all that wait, for each call: 80,000


@pytest.mark.parametrize("seed", range(20))
def test_every_call_gets_a_place_whatever_becomes_of_the_limits(seed: int) -> None:
    dice = random.Random(seed)
    most = 0

    async def one(pool: Pool) -> None:
        nonlocal most
        server = await pool.take()
        began = time.monotonic()
        most = max(most, server.in_flight)
        await asyncio.sleep(dice.random() * 0.002)
        what = dice.choice(["replied", "replied", "overloaded", "paused"])
        if what == "replied":
            server.replied()
        else:
            server.overloaded(began)
        if what == "paused":
            server.pause(dice.random() * 0.01)
        pool.give_back(server)

    async def all_of_them() -> Pool:
        pool = Pool(["a", "b", "c"], 5)
        async with asyncio.timeout(60):
            await asyncio.gather(*(one(pool) for _ in range(200)))
        return pool

    pool = asyncio.run(all_of_them())
    assert most == 5 and not any(server.in_flight for server in pool.servers)
