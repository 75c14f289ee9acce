"""Rows of a data set, from a JSONL file or the hub, each knowing where it stands for error messages."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar.errors import UserError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_PLACE = re.compile(rf"({HUB_ID.pattern})(?:@([\w./-]+))?")
MAIN = "main"


@dataclass(frozen=True)
class SourceRow:
    """A row with where it stands; numbers count from 1."""

    place: str
    number: int
    data: Mapping[str, Any]

    def wrong(self, problem: str, fix: str) -> UserError:
        """Return the error that says what is wrong with this row, and the fix."""
        return UserError(f"{self.place}: {problem}; {fix}")

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a value that is there and of a kind. Raises UserError."""
        if key not in self.data:
            raise self.wrong(f"no {key!r}, only {', '.join(self.data)}", f"add the key {key!r}")
        value = self.data[key]
        if not isinstance(value, kind) or value == "":
            raise self.wrong(f"{key} is {json.dumps(value, default=str)[:60]}", f"give it as {_kind_name(kind)}")
        return value

    def named(self, *keys: str) -> str:
        """Return the first of these values that the row has, 0 too, as its name; its number where it has none."""
        given = (self.data.get(key) for key in keys)
        return str(next((value for value in given if value is not None and value != ""), self.number))

    def texts(self, key: str) -> list[str]:
        """Return a list of texts none of which is empty. Raises UserError."""
        values = self.get(key, list)
        if not values or not all(isinstance(value, str) and value.strip() for value in values):
            raise self.wrong(f"{key} is {json.dumps(values)[:60]}", "give a list of texts that are not empty")
        return list(values)


@dataclass(frozen=True)
class HubSplit:
    """Which part of a hub data set is read; `example` is an id to show where a place is no id."""

    example: str
    split: str
    config: str | None = None


def source_rows(place: str, key: str, hub: HubSplit) -> Iterator[SourceRow]:
    """Yield the rows of the file or hub id `place`, which stands at `key` of the run file.

    Raises UserError where there is neither, and for a line that is no JSON object.
    """
    return file_rows(Path(place)) if is_file(place, key, hub.example) else _hub_rows(place, key, hub)


def is_file(place: str, key: str, example: str) -> bool:
    """Return whether `place` is a file, else a hub id. Raises UserError where it can be neither."""
    if Path(place).is_file():
        return True
    if hub_place(place) is None:
        raise UserError(
            f"{key}: no file {place!r} in {Path.cwd()}; give the path of a .jsonl file, or a hub id such as {example}"
        )
    return False


def hub_place(place: str) -> tuple[str, str] | None:
    """Return id and revision of `org/name` or `org/name@revision`; None for what is written as no data set of the hub.

    Without one the revision is that of the branch MAIN.
    """
    found = _HUB_PLACE.fullmatch(place)
    if found is None or Path(place).suffix in (".json", ".jsonl"):
        return None
    return found[1], found[2] or MAIN


def file_rows(path: Path) -> Iterator[SourceRow]:
    """Yield the rows of a JSONL file. Raises UserError naming a line that is no JSON object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                json.dumps(data, ensure_ascii=False).encode()  # half a character parses, but nothing can write it
            except UnicodeError as error:
                raise UserError(
                    f"{path}:{number}: not UTF-8: {error}; write one JSON object a line, in UTF-8"
                ) from error
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: not JSON: {error}; write one JSON object a line") from error
            if not isinstance(data, dict):
                raise UserError(f"{path}:{number}: a {type(data).__name__}; write one JSON object a line")
            yield SourceRow(f"{path}:{number}", number, data)


def _hub_rows(place: str, key: str, hub: HubSplit) -> Iterator[SourceRow]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{key}: {place} is a hub id, and the package datasets is missing; pip install datasets"
        ) from error
    hub_id, _, revision = place.partition("@")
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            hub_id, hub.config, split=hub.split, revision=revision or None
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(
            f"{key}: cannot load {place} (split {hub.split}) from the hub: {reason}; give the path of a "
            "file, or check name and network"
        ) from error
    for number, data in enumerate(rows, 1):
        yield SourceRow(f"{hub_id} row {number}", number, data)


def _kind_name(kind: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a whole number", list: "a list"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(names[one] for one in kinds)
