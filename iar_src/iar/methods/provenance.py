"""Provenance as a graph: entries, what each was made from, by which activity. What every export is written from."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol
from uuid import NAMESPACE_URL, uuid5

from iar.records import Lineage, ModelScores, to_json

SHOWN_DIGITS = 12
ROWS = frozenset(("chunk", "anchor", "qa", "retelling", "example"))
"""Kinds that exist only inside a dataset: formats that know datasets and models, and no rows, pass them over."""


AGENTS = frozenset(("agent", "scorer", "verifier"))
"""Kinds that wrote or judged: no data."""
WEIGHED = "weighed"
COMPARED = frozenset(("chosen", "considered", "compared-with", WEIGHED))
"""Roles of the models that a decision looked at, and of their scores."""
UNCHECKED = "unchecked"
"""Of scores: the evaluations that training data was not checked against; absent where it was against all."""
TAKEN_BEFORE = "taken_before"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Activity(Protocol):
    """The execution of a stage; `started` is Unix time, `seconds` how long it took."""

    @property
    def id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def code_version(self) -> str: ...
    @property
    def config_digest(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def started(self) -> float: ...
    @property
    def seconds(self) -> float: ...


class Link(Protocol):
    """`product` was made from `input`, which played `role`, by the activity of this id."""

    @property
    def product(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def activity(self) -> str: ...


@dataclass(frozen=True)
class Provenance:
    """An entry with everything upstream of it.

    `entries` by digest; those of which there may be a million, such as rows, have an empty payload, and none has
    `inputs`, which `links` hold. `activities` by id. `scores` are the evaluations of the subject, if it is a model.
    """

    subject: Lineage
    entries: Mapping[str, Lineage]
    links: Sequence[Link]
    activities: Mapping[str, Activity]
    scores: tuple[Lineage, ...] = ()

    def of_kind(self, *kinds: str) -> list[Lineage]:
        """Return the entries of some kinds, by name and digest."""
        found = (entry for entry in self.entries.values() if entry.kind in kinds)
        return sorted(found, key=lambda entry: (entry.name, entry.digest))

    @cached_property
    def below(self) -> Mapping[str, list[Link]]:
        """The links by their product; [] for a source."""
        found: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            found[link.product].append(link)
        return found

    def parts(self, *kinds: str) -> list[Lineage]:
        """Return the entries of some kinds that went into the subject, by name and digest.

        What it was only compared with went into the decision, not into the model.
        """
        waiting, seen = [self.subject.digest], {self.subject.digest}
        while waiting:
            for link in self.below.get(waiting.pop(), ()):
                if link.role not in COMPARED and link.input not in seen:
                    seen.add(link.input)
                    waiting.append(link.input)
        return [one for one in self.of_kind(*kinds) if one.digest in seen and one.digest != self.subject.digest]

    def inputs_of(self, digest: str) -> list[Lineage]:
        """Return what an entry was made from directly."""
        return [self.entries[one] for one in sorted({link.input for link in self.below.get(digest, ())})]

    def made_by(self, digest: str) -> list[Activity]:
        """Return the activities that made an entry, the first first; [] for a source."""
        found = {link.activity for link in self.below.get(digest, ())}
        return sorted((self.activities[one] for one in found), key=lambda one: (one.started, one.id))


@dataclass(frozen=True)
class Flow:
    """What one activity read and made, rows and agents left out: (role, digest) of inputs, digests of outputs."""

    activity: Activity
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]


def flows(provenance: Provenance) -> list[Flow]:
    """Return the activities in the order of their start, each with its inputs and outputs.

    An input that is a row is replaced by what that row was made from, so that no way is broken.
    """
    inputs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    outputs: dict[str, set[str]] = defaultdict(set)
    for product, links in provenance.below.items():
        if provenance.entries[product].kind not in ROWS:
            for activity in {link.activity for link in links}:
                outputs[activity].add(product)
                inputs[activity] |= _lifted([link for link in links if link.activity == activity], provenance)
    ordered = sorted(outputs, key=lambda one: (provenance.activities[one].started, one))
    return [
        Flow(provenance.activities[one], _from_outside(inputs[one], outputs[one]), tuple(sorted(outputs[one])))
        for one in ordered
    ]


def _from_outside(inputs: set[tuple[str, str]], outputs: set[str]) -> tuple[tuple[str, str], ...]:
    """Return the inputs that the activity did not make itself."""
    return tuple(sorted((role, digest) for role, digest in inputs if digest not in outputs))


def _lifted(links: list[Link], provenance: Provenance) -> set[tuple[str, str]]:
    """Return (role, digest) of the inputs that are no rows, over however many rows; each row is passed once."""
    found: set[tuple[str, str]] = set()
    waiting, seen = list(links), set[str]()
    while waiting:
        one = waiting.pop()
        kind = provenance.entries[one.input].kind
        if kind not in ROWS | AGENTS:
            found.add((one.role, one.input))
        elif one.input not in seen:
            seen.add(one.input)
            waiting += provenance.below.get(one.input, ())
    return found


def shown(entry: Lineage) -> str:
    """Return the id people see, such as `checkpoint:3f9a01bc77de`."""
    return f"{entry.kind}:{entry.digest[:SHOWN_DIGITS]}"


def public_source(entry: Lineage) -> str:
    """Return where a base model came from, without the folders of this machine; "" for any other entry."""
    source = str(entry.payload.get("source", ""))
    return source if HUB_ID.fullmatch(source) else source.rstrip("/").rpartition("/")[2]


def uuid_of(text: str) -> str:
    """Return the UUID that always stands for this text."""
    return str(uuid5(NAMESPACE_URL, f"urn:iar:{text}"))


def timestamp(seconds: float) -> str:
    """Return Unix time in ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def scores_payload(scores: ModelScores, mark: str = "") -> dict[str, Any]:
    """Return what the entry of scores says; `mark` tells who took the test before, "" where it was a first look."""
    payload: dict[str, Any] = to_json(scores)
    return payload | ({TAKEN_BEFORE: mark} if mark else {})


def taken_before(scores: Lineage) -> str:
    """Return the mark of an entry of scores."""
    return str(scores.payload.get(TAKEN_BEFORE, ""))


def slug(text: str) -> str:
    """Return a text as a name of letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") or "unnamed"


def scored(scores: Lineage) -> Iterator[tuple[str, float, float, float]]:
    """Yield (suite, points, low, high) of an entry of scores; points are 0 to 100, the interval is 95 %."""
    for suite in scores.payload.get("suites", ()):
        yield str(suite["suite"]), float(suite["points"]), float(suite["low"]), float(suite["high"])
    if "general" in scores.payload:
        general = scores.payload
        yield "general", float(general["general"]), float(general["general_low"]), float(general["general_high"])


def unchecked(scores: Iterable[Lineage]) -> list[str]:
    """Return the evaluations behind some scores that training data was not checked against, each once."""
    return list(dict.fromkeys(str(name) for one in scores for name in one.payload.get(UNCHECKED, ())))
