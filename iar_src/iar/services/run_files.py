"""Reads run files: strict YAML and values set over it, checked, every error with its place."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.explain import explain, redact, user_path
from iar.services.yaml_source import Source, dotted, parse_yaml

EXAMPLE = "pipelines/runs/demo.yaml"


def load_run_file(path: Path, overrides: Sequence[str] = ()) -> RunFile:
    """Return the run file at `path` with `overrides` (each `section.key=value`, a YAML value) applied.

    Raises UserError with one line an error: place, key, value, fix.
    """
    source = _sections(_read(path), str(path))
    for override in overrides:
        _override(source, override)
    return _checked(source)


def read_run_file(text: str, name: str, values: Mapping[str, tuple[str, Any]]) -> RunFile:
    """Return the run file in a text that errors call `name`, with values set over it: dotted key to (place, value).

    The text is YAML, or JSON as `RunFile.canonical` writes it. Raises UserError as `load_run_file` does.
    """
    source = _canonical(text, name) or _sections(text, name)
    for key, (place, value) in values.items():
        _assign(source, key, Source(value, {(): place}), place)
    return _checked(source)


def _sections(text: str, name: str) -> Source:
    source = parse_yaml(text, name)
    if source.data is None:
        raise UserError(f"{name}: the run file is empty; copy {EXAMPLE} and change it")
    if not isinstance(source.data, dict):
        raise UserError(f"{source.place(())}: a run file is sections such as 'run:' and 'documents:'; see {EXAMPLE}")
    return source


def _canonical(text: str, name: str) -> Source | None:
    """Return the run file that a program wrote, in which lines mean nothing; None for one that a person wrote."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return Source(data, {(): name}) if isinstance(data, dict) else None


def _checked(source: Source) -> RunFile:
    # A section whose keys are all commented out means its defaults.
    data = {name: {} if section is None else section for name, section in source.data.items()}
    try:
        return RunFile.model_validate(data)
    except ValidationError as error:
        raise UserError("\n".join(_lines(error, source))) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such run file{_neighbours(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, not a run file{_neighbours(path / 'x')}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}; save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check its permissions") from error


def _neighbours(path: Path) -> str:
    names = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"; did you mean {path.parent / close[0]}?"
    if names:
        return f"; {path.parent} has {', '.join(names[:10])}"
    return f"; start from {EXAMPLE}"


def _override(source: Source, override: str) -> None:
    """Set one `section.key=value` in the data; its place in later errors is the option itself."""
    place = redact(f"--set {override}")
    name, equals, text = override.partition("=")
    key = name.strip()
    if not equals or not all(key.split(".")):
        raise UserError(f"{place}: must be section.key=value, such as --set inject.epochs=2")
    _assign(source, key, parse_yaml(text, place, one_line=True), place)


def _assign(source: Source, key: str, value: Source, place: str) -> None:
    """Set the value at a dotted key, and the place that errors about it name."""
    keys = key.split(".")
    target = source.data
    for depth, part in enumerate(keys[:-1], 1):
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            whole = dotted(tuple(keys[:depth]))
            raise UserError(f"{place}: {whole} is no section but a value or a list; set {whole} as a whole")
    target[keys[-1]] = value.data
    path = tuple(keys)
    _forget(source, path)
    source.places.update({(*path, *inner): place for inner in value.places})


def _forget(source: Source, path: tuple[str, ...]) -> None:
    """Drop the places of what an override replaced."""
    for known in [known for known in source.places if known[: len(path)] == path]:
        del source.places[known]


def _lines(error: ValidationError, source: Source) -> list[str]:
    found = []
    for detail in error.errors(include_url=False):
        # A list with a refused item is then counted as too short as well: say only the cause.
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue
        path = user_path(detail["loc"])
        place = source.place(path)
        line = place.rpartition(":")[2]
        order = int(line) if line.isdigit() else 0
        found.append((order, f"{place}: {dotted(path)}: {explain(detail)}"))
    return [text for _, text in sorted(found, key=lambda item: item[0])]
