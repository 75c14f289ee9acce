"""Rows of evaluation and instruction files: whatever a line holds, it gives a row or one clear line of error."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iar.errors import UserError
from iar.services.source_rows import HubSplit, hub_place, source_rows

GOOD = b'{"prompt": "Who built the mill?"}\n'


def prompts(path: Path, lines: bytes) -> list[object]:
    path.write_bytes(lines)
    return [row.data["prompt"] for row in source_rows(str(path), "evaluate.mmlu", HubSplit("cais/mmlu", "test"))]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"prompt": "\\ud800"}', "not UTF-8"),
        (b'{"\\udc00": ""}', "not UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000, "not JSON"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "a list"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(
        UserError, match=rf"^{re.escape(str(path))}:2: {problem}[^\n]*; write one JSON object"
    ) as caught:
        prompts(path, GOOD + line + b"\n")
    assert str(caught.value).isprintable()


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    lines = b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD + '{"prompt": "灯塔 \U0001f600"}'.encode()
    assert prompts(tmp_path / "rows.jsonl", lines)[1:] == ["Who built the mill?", "灯塔 😀"]


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("cais/mmlu", ("cais/mmlu", "main")),
        ("cais/mmlu@v1.0", ("cais/mmlu", "v1.0")),
        ("cais/mmlu@refs/pr/2", ("cais/mmlu", "refs/pr/2")),
        ("cais/mmlu@", None),
        ("probes/mmlu.jsonl", None),
        ("examples/probes/mmlu.jsonl", None),
        ("mmlu", None),
    ],
)
def test_a_revision_may_stand_after_a_hub_id(place: str, named: tuple[str, str] | None) -> None:
    assert hub_place(place) == named


def test_rows_of_the_hub_are_read_at_the_revision_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> list[dict[str, str]]:
        asked.append((name, config, split, revision))
        return [{"prompt": "Who?"}]

    # The hub's own protocol would need the hub; what it is asked for is what counts.
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    hub = HubSplit("cais/mmlu", "test", "all")
    rows = [row for place in ("cais/mmlu@dev", "cais/mmlu") for row in source_rows(place, "evaluate.mmlu", hub)]
    assert asked == [("cais/mmlu", "all", "test", "dev"), ("cais/mmlu", "all", "test", None)]
    assert [row.place for row in rows] == ["cais/mmlu row 1"] * 2
