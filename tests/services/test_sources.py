"""Where documents come from: folders, row files, S3 and hub datasets give the same items, one at a time."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from iar.config import DocumentsSection
from iar.errors import UserError
from iar.records import Reject
from iar.services.sources import Item, hub_items, is_hub_id, items
from tests.services.s3_server import BUCKET, s3_server

ROWS = [{"text": f"Mill {number}\n\nIt turns.", "id": f"m{number}", "licence": "CC0"} for number in range(5)]


def found(place: str | Path, **settings: Any) -> list[Item]:
    return [item for item in items(section(place, **settings)) if isinstance(item, Item)]


def left_out(place: str | Path, **settings: Any) -> dict[str, str]:
    return {one.item_id: one.reason for one in items(section(place, **settings)) if isinstance(one, Reject)}


def section(place: str | Path, **settings: Any) -> DocumentsSection:
    return DocumentsSection.model_validate({"path": str(place)} | settings)


def write_rows(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_folder_is_read_in_the_order_of_paths_through_all_its_folders(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt", "a/b/c.txt", "c/a.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}')
    names = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert [item.path for item in found(tmp_path)] == names
    assert [item.collection for item in found(tmp_path)] == ["a", "a", "", "", "c"]


def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [item.source for item in found(tmp_path)] == ["a.txt"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_row_files_give_a_document_a_row(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"mills{suffix}")
    for place in (path, tmp_path):
        rows = found(place, columns={"id": "id", "licence": "licence"})
        assert [(item.content, item.alias, item.licence) for item in rows] == [tuple(row.values()) for row in ROWS]
        assert [item.source for item in rows] == [f"mills{suffix}:{number}" for number in range(1, 6)]
    assert len(found(path, limit=2)) == 2


def test_broken_rows_fail_alone(tmp_path: Path) -> None:
    lines = ['{"text": "good"}', "{torn", "[1]", '{"body": "x"}', '{"text": 3}', "", '{"text": "caf\\u00e9"}']
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"text": "\xff"}\n')
    assert [item.content for item in found(tmp_path)] == ["good", "café"]
    assert left_out(tmp_path) == {
        "a.jsonl:2": "line is no JSON",
        "a.jsonl:3": "line is no JSON object",
        "a.jsonl:4": "no column text",
        "a.jsonl:5": "no text in the column text",
        "a.jsonl:8": "line is no JSON",
    }


@pytest.mark.parametrize("end", ["<img src=q onerror=alert(1)>", "a|b", "a\n# Head", "a" * 100, "ü", "", " a"])
def test_what_stands_after_a_dot_is_a_reason_only_where_it_is_a_type(tmp_path: Path, end: str) -> None:
    (tmp_path / f"x.{end}").write_text("The Mill")
    assert list(left_out(tmp_path).values()) == ["unsupported type (no extension)"]


def test_a_damaged_parquet_file_fails_alone(tmp_path: Path) -> None:
    write_rows(tmp_path / "good.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-9])
    assert len(found(tmp_path)) == 5
    assert [reason.partition(" (")[0] for reason in left_out(tmp_path).values()] == ["damaged Parquet file"]


def test_a_parquet_file_without_a_named_column_fails_alone_among_others(tmp_path: Path) -> None:
    write_rows(tmp_path / "good.parquet")
    parquet.write_table(pa.table({"label": [1, 2], "b\x1b[2J": ["x", "y"]}), tmp_path / "labels.parquet")
    assert len(found(tmp_path)) == 5
    assert left_out(tmp_path) == {"labels.parquet:1": "no column text"}
    only = "documents.columns.text: labels.parquet has no column 'text', only label, b [2J; name one of these"
    (failed,) = (one for one in items(section(tmp_path)) if isinstance(one, Reject))
    assert (failed.outcome, failed.text) == ("failed", f"{only}, or move the file away")
    with pytest.raises(UserError, match=f"^{re.escape(only)}$"):
        found(tmp_path / "labels.parquet")


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet")
    message = "documents.columns.title: a.parquet has no column 'name', only text, id, licence; name one of these"
    with pytest.raises(UserError, match=re.escape(message)):
        found(path, columns={"title": "name"})
    assert left_out(tmp_path, columns={"title": "name"}) == {"a.parquet:1": "no column name"}


def test_a_line_without_the_text_column_fails_with_the_columns_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"body": "x", "id": 3}\n')
    (failed,) = (one for one in items(section(tmp_path)) if isinstance(one, Reject))
    assert failed.text == (
        "documents.columns.text: a.jsonl:2 has no column 'text', only body, id; name one of these, or move the file "
        "away"
    )


@pytest.mark.parametrize("place", ["/nowhere", "nowhere", "./nowhere/there", "org/name/more", "org/name.jsonl"])
def test_a_place_that_leads_nowhere_says_what_to_set(place: str) -> None:
    with pytest.raises(UserError, match=rf"^documents\.path: {re.escape(place)} is not a folder or file; set it to a"):
        found(place)


def test_a_hub_id_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("PleIAs/common_corpus") and not is_hub_id("docs") and not is_hub_id("s3://bucket/name")
    (tmp_path / "PleIAs" / "common_corpus").mkdir(parents=True)
    assert not is_hub_id("PleIAs/common_corpus")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_hub_dataset_streams_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """A local folder stands for the hub: `datasets` loads both by the same way."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write_rows(tmp_path / "set" / f"train{suffix}")
    settings = section(tmp_path / "set", columns={"id": "id", "licence": "licence"})
    assert [item.alias for item in hub_items(settings) if isinstance(item, Item)] == ["m0", "m1", "m2", "m3", "m4"]
    shuffled = [item.alias for item in hub_items(section(tmp_path / "set", columns={"id": "id"}, shuffle_seed=3))
                if isinstance(item, Item)]  # fmt: skip
    assert sorted(shuffled) == ["m0", "m1", "m2", "m3", "m4"] != shuffled
    wrong = section(tmp_path / "set", columns={"text": "body"})
    with pytest.raises(UserError, match=r"documents\.columns\.text: .* has no column 'body', only text, id, licence"):
        list(hub_items(wrong))
    with pytest.raises(UserError, match=r"cannot load .* \(split test\) from the hub: .*; check id, config, split and"):
        list(hub_items(section(tmp_path / "set", split="test")))


def test_a_prefix_of_s3_gives_what_the_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "set" / "rows" / "a.parquet")
    for name, text in (("b.txt", "The Mill\n\nIt turns."), ("c.csv", "a,b"), ("sub/d.md", "# Mill\n\nIt turns.")):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_text(text)
    with s3_server(monkeypatch) as server:
        client = server.client()
        for path in sorted((tmp_path / "set").rglob("*")):
            if path.is_file():
                key = f"corpus/{path.relative_to(tmp_path / 'set').as_posix()}"
                client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
        client.put_object(Bucket=BUCKET, Key="corpus/sub/", Body=b"")
        place = f"s3://{BUCKET}/corpus"
        there, here = found(place), found(tmp_path / "set")
        assert {(one.source, one.content) for one in there} == {(one.source, one.content) for one in here}
        assert all(re.fullmatch(r"[0-9a-f]{32}", one.revision) for one in there)
        assert there[0].place.startswith(f"{place}/b.txt")
        assert left_out(place) == {"c.csv": "unsupported type .csv"}
        with pytest.raises(UserError, match=r"make the bucket, or correct its name"):
            found("s3://no-such-bucket/x")
