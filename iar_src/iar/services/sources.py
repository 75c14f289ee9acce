"""The items of a document set, one after the other: files of a folder or an S3 prefix, rows of files and hub datasets.

Nothing is held but the item at hand. What cannot be opened is an item too: it comes as a Reject with its reason.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from iar.config import ColumnsSection, DocumentsSection
from iar.errors import TemporaryError, UserError
from iar.methods.digest import digest_file, digest_json
from iar.records import Reject
from iar.services.hub_commits import Unanswered, ask_hub
from iar.services.source_rows import HUB_ID
from iar.services.withheld import RETRACTED, Withheld

STEP = "documents"
MEDIA_TYPES = {
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".pdf": "application/pdf",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
ROW_TYPES = (".jsonl", ".parquet")
KNOWN = frozenset((*MEDIA_TYPES, *ROW_TYPES))
KINDS = ".txt .md .html .pdf .docx .jsonl .parquet"
PARQUET_ROWS = 64
# A book can be a megabyte.
SHUFFLED_ROWS = 100
S3 = "s3://"
NO_COLUMN = "no column"
MOST_NAMES = 20


@dataclass(frozen=True)
class Item:
    """A file's bytes, or the text of a row, and where it was found.

    `source` names it within the set; `path` is the part of that name which does not move when rows are added.
    """

    source: str
    path: str
    content: bytes | str
    media_type: str
    collection: str
    place: str
    revision: str = ""
    alias: str = ""
    title: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Broken:
    """Why a row, or a file of rows, gives no document: a reason to be counted, and what was found there."""

    reason: str
    found: str = ""


def items(settings: DocumentsSection, withheld: Withheld | None = None) -> Iterator[Item | Reject]:
    """Yield the items of `settings.path` in the order of their names, at most `settings.limit`.

    A file of rows that is among the `withheld` gives none.

    Raises UserError where there is no such place or nothing in it may be read, TemporaryError where the network fails.
    """
    place, withheld = settings.path, withheld or Withheld()
    if is_remote(place):
        found = _s3_items(settings, withheld)
    elif Path(place).is_dir():
        found = _folder_items(settings, withheld)
    elif Path(place).is_file():
        found = _file_items(Path(place), _valid(Path(place).name), _valid(str(Path(place))), "", settings, withheld)
    elif is_hub_id(place):
        found = hub_items(settings)
    else:
        raise UserError(f"documents.path: {place} is not a folder or file; {what_to_set(place)}")
    return islice(found, settings.limit)


def is_remote(place: str) -> bool:
    """Tell whether a place is in an object store."""
    return place.startswith(S3)


def is_hub_id(place: str) -> bool:
    """Tell whether a place that is no file and no folder here is written as the id of a hub dataset."""
    known = PurePosixPath(place).suffix in KNOWN
    return not Path(place).exists() and not known and not place.startswith(".") and bool(HUB_ID.fullmatch(place))


def what_to_set(place: str) -> str:
    """Return the fix for a place that leads nowhere."""
    return f"set it to a folder with {KINDS} files, an s3:// prefix or a hub dataset's id"


def walk(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder in the order of their paths, a folder's names at a time; no linked folders."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


def _folder_items(settings: DocumentsSection, withheld: Withheld) -> Iterator[Item | Reject]:
    folder = Path(settings.path)
    for path in walk(folder):
        # A name that is not UTF-8 has halves of characters, which nothing can write.
        name = _valid(path.relative_to(folder).as_posix())
        yield from _file_items(path, name, _valid(str(path)), "", settings, withheld)


def _s3_items(settings: DocumentsSection, withheld: Withheld) -> Iterator[Item | Reject]:
    from iar.services.object_store import Bucket

    bucket = Bucket(settings.path)
    with tempfile.TemporaryDirectory(prefix="iar-documents-") as folder:
        for name, size, etag in bucket.listing():
            if name.endswith("/"):  # a marker that some tools write for a folder
                continue
            path = Path(folder) / f"object{PurePosixPath(name).suffix}"
            if unfit := _unfit(name):
                yield unfit
                continue
            bucket.fetch(name, path, size)
            yield from _file_items(path, name, f"{bucket.place}/{name}", etag, settings, withheld)
            path.unlink()


def _file_items(
    path: Path, name: str, place: str, revision: str, settings: DocumentsSection, withheld: Withheld
) -> Iterator[Item | Reject]:
    """Yield a file's item, or those of its rows; `name` is its path within the set."""
    if unfit := _unfit(name):
        yield unfit
        return
    collection = PurePosixPath(name).parts[0] if "/" in name else ""
    suffix = PurePosixPath(name).suffix.lower()
    try:
        if suffix in ROW_TYPES:
            withheld.row_files.add(digest := digest_file(path))
            if withheld.holds(digest):
                yield Reject(STEP, name, RETRACTED, "")
                return
            alone = path == Path(settings.path)
            rows = _jsonl_rows(path, name) if suffix == ".jsonl" else _parquet_rows(path, name, settings.columns, alone)
            yield from _row_items(rows, name, place, revision, collection or name, settings)
        else:
            yield Item(name, name, path.read_bytes(), MEDIA_TYPES[suffix], collection, place, revision)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); allow reading it or move it away") from error


def _unfit(name: str) -> Reject | None:
    """Return why a file is left out by its name alone."""
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts):
        return Reject(STEP, name, "hidden file", "")
    suffix = path.suffix.lower()
    if suffix not in KNOWN:
        # The reason is counted and goes into Markdown: anything else after a dot is no type, but part of a name.
        shown = suffix if re.fullmatch(r"\.[a-z0-9]{1,10}", suffix) else "(no extension)"
        return Reject(STEP, name, f"unsupported type {shown}", "")
    return None


Row = tuple[int, Mapping[str, Any] | Broken]
"""A row's number from 1, and its columns or why it has none."""


def _row_items(
    rows: Iterable[Row], name: str, place: str, revision: str, collection: str, settings: DocumentsSection
) -> Iterator[Item | Reject]:
    columns = settings.columns
    for number, row in rows:
        source = f"{name}:{number}"
        if isinstance(row, Broken):
            yield Reject(STEP, source, row.reason, row.found, outcome="failed")
            continue
        text = row.get(columns.text)
        if not isinstance(text, str):
            broken = Broken(f"no text in the column {columns.text}", _shown(row))
            if columns.text not in row:
                broken = _lacking("text", columns.text, source, row, among_others=True)
            yield Reject(STEP, source, broken.reason, broken.found, outcome="failed")
            continue
        alias, title, licence, part = (
            _valid(str(row.get(column) or "")) if column else ""
            for column in (columns.id, columns.title, columns.licence, columns.collection)
        )
        yield Item(
            source,
            name,
            _valid(text),
            "text/plain",
            part or collection,
            f"{place}:{number}",
            revision,
            alias,
            title,
            licence,
        )


def _shown(row: Mapping[str, Any]) -> str:
    """Return the beginning of a row, or nothing of one that is nested too deeply to be written."""
    try:
        return _valid(json.dumps(dict(row), ensure_ascii=False, default=str)[:200])
    except RecursionError:
        return ""


def _valid(text: str) -> str:
    """Return `text` with a mark in place of each half of a character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _jsonl_rows(path: Path, name: str) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            # Not UTF-8, not JSON, or nested deeper than the parser goes.
            except (ValueError, RecursionError):
                yield number, Broken("line is no JSON")
                continue
            yield number, row if isinstance(row, dict) else Broken("line is no JSON object")


def _parquet_rows(path: Path, name: str, columns: ColumnsSection, alone: bool) -> Iterator[Row]:
    """Yield the rows of a file; without a named column it fails among others, and `alone` it is a user's mistake."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if not alone and (broken := next(_absent(names, columns, name, among_others=True), None)):
                yield 1, broken
                return
            wanted = _present(names, columns, name)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except PermissionError:
        raise
    # What is damaged within a page shows as an error of the system.
    except (pyarrow.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        yield number + 1, Broken(f"damaged Parquet file ({type(error).__name__})")


def _present(names: Iterable[str], columns: ColumnsSection, place: str) -> list[str]:
    """Return the columns that are read. Raises UserError for one that is not there."""
    for broken in _absent(list(names), columns, place):
        raise UserError(broken.found)
    return list(dict.fromkeys(column for column in columns.model_dump().values() if column))


def _absent(names: Sequence[str], columns: ColumnsSection, place: str, among_others: bool = False) -> Iterator[Broken]:
    """Yield what is wrong for each column that the run file names and that is not there."""
    for key, column in columns.model_dump().items():
        if column and column not in names:
            yield _lacking(key, column, place, names, among_others)


def _lacking(key: str, column: str, place: str, names: Iterable[str], among_others: bool = False) -> Broken:
    there = ", ".join(_printable(name)[:40] for name in islice(names, MOST_NAMES)) or "none"
    fix = "name one of these" + ", or move the file away" * among_others
    return Broken(
        f"{NO_COLUMN} {column}", f"documents.columns.{key}: {place} has no column {column!r}, only {there}; {fix}"
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in _valid(text))


def what_to_mend(reject: Reject) -> str:
    """Return what the user can do about a dropped item, where it says so: of a named column that is not there."""
    return reject.text if reject.reason.startswith(NO_COLUMN) else ""


def hub_items(settings: DocumentsSection) -> Iterator[Item | Reject]:
    """Yield the rows of a hub dataset as they stream in; a folder that `datasets` can load is one too.

    Raises UserError where it cannot be loaded, TemporaryError where the stream ends early.
    """
    import datasets

    place = settings.path
    revision = hub_commit(place, settings.revision)
    try:
        rows = datasets.load_dataset(
            place, settings.config or None, split=settings.split, revision=revision or None, streaming=True
        )
        first: Mapping[str, Any] = next(iter(rows.take(1)), {})
        wanted = _present(first, settings.columns, place)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"documents.path: cannot load {place} (split {settings.split}) from the hub: {_line(error)}; "
            f"check id, config, split and network, or {what_to_set(place)}"
        ) from error
    rows = rows.select_columns(wanted)
    if settings.shuffle_seed is not None:
        rows = rows.shuffle(seed=settings.shuffle_seed, buffer_size=SHUFFLED_ROWS)
    stream = _row_items(enumerate(rows, 1), place, place, revision, place, settings)
    try:
        yield from stream
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise TemporaryError(
            f"documents.path: {place} broke off: {_line(error)}; run the same command again"
        ) from error


def hub_commit(place: str, revision: str) -> str:
    """Return the commit that a revision of a hub dataset is now; "" for a folder. Raises UserError where none is."""
    if Path(place).is_dir():
        return ""
    try:
        return ask_hub("dataset", place, revision)
    except Unanswered as error:
        raise UserError(
            f"documents.path: {place} at revision {revision} was not found on the hub ({error}); "
            f"check id and network, or {what_to_set(place)}"
        ) from error


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def row_digest(item: Item) -> str:
    """Return the digest of a row: its text, and the id and title beside it."""
    return digest_json([item.alias, item.title, item.content])
