"""Strict YAML: plain data plus the line of every key, without YAML 1.1's surprises.

`1:1:2` is text and not 3,662 in base 60, `1e-4` is a number, `no` and dates are text, a key given
twice is refused, and no tag can build an object.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from iar.errors import UserError

Path = tuple[str | int, ...]
MAX_NODES = 10_000
TAG = "tag:yaml.org,2002:"
RESOLVERS = {
    "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"^[-+]?[0-9]+$"),
    "float": re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"
    ),
}


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2's core rules."""


_Loader.yaml_implicit_resolvers = {None: [(TAG + name, pattern) for name, pattern in RESOLVERS.items()]}


@dataclass
class Source:
    """Parsed YAML: `data`, and for every path in it where it stands, such as `demo.yaml:14`."""

    data: Any
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Return where `path` stands: itself, else what an override put below it, else the section around it."""
        while path and path not in self.places:
            below = [place for known, place in self.places.items() if known[: len(path)] == path]
            if below:
                return below[0]
            path = path[:-1]
        return self.places.get(path, "")


def parse_yaml(text: str, name: str, one_line: bool = False) -> Source:
    """Parse one YAML document; `name` is the file (or, with `one_line`, the whole place) in errors.

    Raises UserError with the place for a syntax error, a repeated key, a tag or an endless alias.
    """
    reader = _Reader(name, one_line)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = reader.at(mark.line) if mark else name
        fix = "write a value such as 3, text or [a, b]" if one_line else _syntax_fix(error)
        raise UserError(f"{place}: not valid YAML: {error.problem or error.context}; {fix}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{name}: not valid YAML: {reason}; save it as plain UTF-8 text") from error
    source = Source(None, {(): reader.at(0)})
    source.data = None if node is None else reader.read(node, (), source.places)
    return source


def _syntax_fix(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "\\t" in problem:
        return "indent with spaces, not tabs"
    if "mapping values" in problem:
        return "put text that holds ': ' in quotes, and check the indentation"
    if "but found another document" in problem:
        return "a run file is one document; remove the '---' line"
    return "check the indentation, quotes and brackets here and one line above"


class _Reader:
    """Turns YAML nodes into dicts, lists and scalars, and notes the line of each."""

    def __init__(self, name: str, one_line: bool) -> None:
        self.name = name
        self.one_line = one_line
        self.nodes = 0
        self.open: list[yaml.Node] = []

    def at(self, line: int) -> str:
        """Return the place of a line that is counted from 0."""
        return self.name if self.one_line else f"{self.name}:{line + 1}"

    def read(self, node: yaml.Node, path: Path, places: dict[Path, str]) -> Any:
        """Return the node as plain data; `places` gets an entry for every path below it."""
        here = self.at(node.start_mark.line)
        self.nodes += 1
        # Aliases may nest or even hold themselves; a few lines could otherwise expand without end.
        if self.nodes > MAX_NODES or any(node is outer for outer in self.open):
            raise UserError(f"{here}: an alias (*name) repeats itself or expands too far; write the values out")
        places.setdefault(path, here)
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
                return self._mapping(node, path, places)
            if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
                return [self.read(item, (*path, index), places) for index, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self.open.pop()

    def _mapping(self, node: yaml.MappingNode, path: Path, places: dict[Path, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = self.at(key_node.start_mark.line)
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{here}: a key must be a word, not a list or a section; remove the brackets or '?'")
            key = str(key_node.value)
            if key in values:
                raise UserError(f"{here}: {dotted((*path, key))}: this key was already given; keep one of the two")
            places[*path, key] = here
            values[key] = self.read(value_node, (*path, key), places)
        return values

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix(TAG)
        try:
            if kind == "str":
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text)
            if kind == "float":
                return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError) as error:
            here = self.at(node.start_mark.line)
            raise UserError(f"{here}: {text[:40]!r} cannot be read as {kind}; write it in quotes for text") from error
        here = self.at(node.start_mark.line)
        raise UserError(f"{here}: the tag {node.tag!r} is not allowed; write the plain value without '!'")


def dotted(path: Path) -> str:
    """Return a path as users write it, on one line: `evaluate.judges[2].model`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if part.isprintable() and part else repr(part)
            text += f".{word}" if text else word
    return text
