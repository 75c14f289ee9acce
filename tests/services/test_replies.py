"""Replies survive a kill: nothing is generated twice, a torn line is dropped."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from iar.records import EvalItem, Reply, read_records
from iar.services.engine import Engine
from iar.services.replies import complete_replies

ITEMS = [EvalItem(f"q{n}", "domain", f"Question {n}?", 8, {}) for n in range(4)]


class Echo:
    """An engine that answers with the prompt, last item first, and dies after `alive` replies."""

    def __init__(self, alive: int = 99) -> None:
        self.alive = alive
        self.asked: list[str] = []

    def generate(self, items: Sequence[EvalItem], on_progress: Any = None) -> Iterator[Reply]:
        for item in reversed(items):
            if len(self.asked) == self.alive:
                raise KeyboardInterrupt
            self.asked.append(item.id)
            yield Reply(item.id, item.prompt, 2, False)


def loads(engine: Echo) -> Callable[[], Engine]:
    return lambda: cast(Engine, engine)


def test_replies_are_kept_in_the_order_of_the_items(tmp_path: Path) -> None:
    complete_replies(tmp_path / "replies.jsonl", ITEMS, loads(Echo()))
    assert [reply.item_id for reply in read_records(tmp_path / "replies.jsonl", Reply)] == ["q0", "q1", "q2", "q3"]


@pytest.mark.parametrize("torn", [b"", b'{"item_id": "q1", "te', b'{"item_id": "q1"}\n', b"\xff\n"])
def test_a_killed_run_goes_on_where_it_stood(tmp_path: Path, torn: bytes) -> None:
    path, whole = tmp_path / "replies.jsonl", tmp_path / "whole.jsonl"
    complete_replies(whole, ITEMS, loads(Echo()))
    with pytest.raises(KeyboardInterrupt):
        complete_replies(path, ITEMS, loads(Echo(alive=2)))
    with path.open("ab") as file:
        file.write(torn)

    second = Echo()
    complete_replies(path, ITEMS, loads(second))
    assert second.asked == ["q1", "q0"]
    assert path.read_bytes() == whole.read_bytes()


def test_known_replies_are_taken_over_and_no_model_is_loaded(tmp_path: Path) -> None:
    def refuse() -> Engine:
        raise AssertionError("the model is not needed")

    known = [Reply(item.id, "known", 1, False) for item in ITEMS] + [Reply("other", "no item", 1, False)]
    replies = complete_replies(tmp_path / "replies.jsonl", ITEMS, refuse, known)
    assert set(replies) == {item.id for item in ITEMS}


def test_progress_counts_from_what_is_there(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    known = [Reply("q0", "known", 1, False)]
    complete_replies(tmp_path / "r.jsonl", ITEMS, loads(Echo()), known, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 4), (3, 4), (4, 4)]
