"""Why a value in the run file was refused, in words, with what would be accepted."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from iar.config import RunFile

Path = tuple[str | int, ...]
UNION_TAGS = {"<name>", "<server>"}


def user_path(location: Iterable[str | int]) -> Path:
    """Return where the error is as the user wrote it: without the names of union branches."""
    return tuple(part for part in location if part not in UNION_TAGS)


def explain(error: ErrorDetails) -> str:
    """Return the sentence for one validation error: the value, what is wrong, what to write."""
    path = user_path(error["loc"])
    sentence = SENTENCES.get(error["type"])
    if sentence is not None:
        return sentence(error, path)
    return f"{shown(error['input'])}: {_lower(error['msg'])}{_meaning(path)}"


def shown(value: Any) -> str:
    """Return a value for an error text: short, on one line, and without a URL's password."""
    if isinstance(value, dict | list | tuple):
        return f"a section with {len(value)} keys" if isinstance(value, dict) else f"a list of {len(value)}"
    if value is None:
        return "nothing"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = redact(text)
    return text if len(text) <= 80 else text[:77] + "..."


def redact(text: str) -> str:
    """Return `text` with the passwords of URLs in it covered."""
    # A password may hold the @ that ends it: all up to the last one is covered.
    return re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", text)


def _unknown_key(error: ErrorDetails, path: Path) -> str:
    keys = sorted(_keys(path[:-1]))
    close = difflib.get_close_matches(str(path[-1]).lower().replace("-", "_"), keys, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown key; {hint}valid keys here: {', '.join(keys)}"


def _missing(error: ErrorDetails, path: Path) -> str:
    field = field_at(path)
    if _section_of(field) is not None:
        required = [name for name in sorted(_keys(path)) if _is_required((*path, name))]
        return f"missing section; add '{path[-1]}:' with {' and '.join(repr(name) for name in required)} below it"
    meaning = f": {_lower(field.description.rstrip('.'))}" if field and field.description else ""
    return f"missing; add '{path[-1]}: ...'{meaning}"


def _whole_number(error: ErrorDetails, path: Path) -> str:
    return f"{shown(error['input'])} is not a whole number; write a number such as {_example(path, 3)}"


def _number(error: ErrorDetails, path: Path) -> str:
    return f"{shown(error['input'])} is not a number; write a number such as {_example(path, 0.5)}"


def _text(error: ErrorDetails, path: Path) -> str:
    value = error["input"]
    if value is None or isinstance(value, dict | list):
        return f"{shown(value)} is not text; write one value{_meaning(path)}"
    return f'{shown(value)} is not text; put it in quotes: "{shown(value)}"'


def _flag(error: ErrorDetails, path: Path) -> str:
    return f"{shown(error['input'])} is neither true nor false; write one of the two"


def _section(error: ErrorDetails, path: Path) -> str:
    keys = ", ".join(sorted(_keys(path)))
    return f"{shown(error['input'])} is not a section; write its keys below it, indented: {keys}"


def _list(error: ErrorDetails, path: Path) -> str:
    return f"{shown(error['input'])} is not a list; write the values in brackets: [{_example(path, '...')}]"


def _length(error: ErrorDetails, path: Path) -> str:
    context = error.get("ctx", {})
    wanted = context.get("min_length", context.get("max_length"))
    bound = "at least" if "min_length" in context else "at most"
    return f"{len(error['input'])} values; write {bound} {wanted}"


def _choice(error: ErrorDetails, path: Path) -> str:
    value = error["input"]
    expected = error.get("ctx", {}).get("expected", "")
    close = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", expected), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    server = ", or a server (name, base_url, model)" if "<name>" in error["loc"] else ""
    return f"{shown(value)} is not one of {expected}{server}{hint}"


def _pattern(error: ErrorDetails, path: Path) -> str:
    return f"{shown(error['input'])} does not fit {error.get('ctx', {}).get('pattern', '')}{_meaning(path)}"


def _own(error: ErrorDetails, path: Path) -> str:
    message = str(error.get("ctx", {}).get("error", error["msg"]))
    value = error["input"]
    return message if isinstance(value, dict | list | tuple | BaseModel) else f"{shown(value)} {message}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails, Path], str]:
    def sentence(error: ErrorDetails, path: Path) -> str:
        return (
            f"{shown(error['input'])} is out of range; it must be {words} {error.get('ctx', {})[key]:g}{_meaning(path)}"
        )

    return sentence


SENTENCES: dict[str, Callable[[ErrorDetails, Path], str]] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "float_type": _number,
    "finite_number": _number,
    "string_type": _text,
    "bool_type": _flag,
    "model_type": _section,
    "tuple_type": _list,
    "too_short": _length,
    "too_long": _length,
    "literal_error": _choice,
    "string_pattern_mismatch": _pattern,
    "value_error": _own,
    "greater_than": _bound("greater than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("smaller than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "string_too_short": lambda error, path: f"is empty; write a value{_meaning(path)}",
}


def field_at(path: Path) -> FieldInfo | None:
    """Return the definition of the key at `path`, looking through lists and unions; None if unknown."""
    section: type[BaseModel] | None = RunFile
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        section = _section_of(field)
    return field


def _section_of(field: FieldInfo | None) -> type[BaseModel] | None:
    return _model_in(field.annotation) if field else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def _keys(path: Path) -> set[str]:
    section = _section_of(field_at(path)) if path else RunFile
    return set(section.model_fields) if section else set()


def _is_required(path: Path) -> bool:
    field = field_at(path)
    return field is not None and field.is_required()


def _example(path: Path, otherwise: Any) -> Any:
    field = field_at(path)
    value = otherwise if field is None or field.default is PydanticUndefined else field.default
    if isinstance(value, tuple):
        value = value[0] if path and isinstance(path[-1], int) else ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else value


def _meaning(path: Path) -> str:
    field = field_at(path)
    return f" ({_lower(field.description.rstrip('.'))})" if field and field.description else ""


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
