"""Commits that calls share: none waits for the disk longer than it must, or is thought to be there and is not."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from iar.errors import TemporaryError
from iar.services.reply_cache import Call, GroupCommit, ReplyCache, open_cache


def call(number: int) -> Call:
    return Call(f"k{number}", "m", "", "http://h", "{}", "{}", True, 5, 2, 0.1)


def test_a_call_waits_for_the_commit_under_way_and_its_own_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, stored = 0, set[str]()
    put = ReplyCache.put

    def slow(cache: ReplyCache, calls: Sequence[Call]) -> None:
        nonlocal commits
        time.sleep(0.01)
        put(cache, calls)
        commits += 1
        stored.update(one.key for one in calls)

    async def one(archive: GroupCommit, number: int) -> int:
        await asyncio.sleep(number * 0.002)  # five a commit
        before = commits
        await archive.put(call(number))
        assert f"k{number}" in stored
        return commits - before

    async def all_of_them() -> list[int]:
        archive = GroupCommit(cache, "m", "")
        waited = await asyncio.gather(*(one(archive, number) for number in range(100)))
        assert archive.spent.calls == 100
        return list(waited)

    monkeypatch.setattr(ReplyCache, "put", slow)
    with open_cache(tmp_path) as cache:
        waited = asyncio.run(all_of_them())
    assert max(waited) <= 2 and commits < 60


def test_a_commit_that_fails_has_stored_none_of_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ReplyCache.put

    def full(cache: ReplyCache, calls: Sequence[Call]) -> None:
        if len(calls) > 1:
            raise TemporaryError("disk full")
        put(cache, calls)

    async def all_of_them() -> list[BaseException | None]:
        archive = GroupCommit(cache, "m", "")
        first = archive.put(call(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = await asyncio.gather(*(archive.put(call(number)) for number in range(1, 4)), return_exceptions=True)
        await first
        return list(rest)

    monkeypatch.setattr(ReplyCache, "put", full)
    with open_cache(tmp_path) as cache:
        failed = asyncio.run(all_of_them())
        assert [str(one) for one in failed] == ["disk full"] * 3
        assert set(cache.find(["k0", "k1"])) == {"k0"}


def test_one_that_is_cancelled_takes_no_other_s_commit_with_it(tmp_path: Path) -> None:
    async def two() -> None:
        archive = GroupCommit(cache, "m", "")
        first, second = (archive.put(call(number)) for number in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second

    with open_cache(tmp_path) as cache:
        asyncio.run(two())
        assert set(cache.find(["k0", "k1"])) == {"k0", "k1"}
