"""What the registry's service answers with, as it stands in the OpenAPI document."""

from typing import Any

from pydantic import BaseModel


class Entry(BaseModel):
    """An entry; `inputs` are (role, digest) of what it was made from directly, [] in a list of entries."""

    kind: str
    digest: str
    name: str
    payload: dict[str, Any]
    inputs: list[tuple[str, str]] = []


class Entries(BaseModel):
    """A page of entries in the order of digests; `next` is the `after` of the next page, "" at the end."""

    items: list[Entry]
    next: str


class EdgeOut(BaseModel):
    """`product` was made from `input`, which played `role`, by `activity`."""

    product: str
    role: str
    input: str
    activity: str


class Edges(BaseModel):
    """A page of edges in the order of recording; `next` is the `after` of the next page, "" at the end."""

    items: list[EdgeOut]
    next: str


class TreeRow(BaseModel):
    """A line of the tree that `iar lineage` prints; `retracted` is the reason, "" where there is none."""

    depth: int
    role: str
    kind: str
    name: str
    id: str
    retracted: str


class ActivityOut(BaseModel):
    """What was done, `kind` in one word, by which code, settings and packages, where, when, at what cost.

    `used` and `made` are (role, digest); the rows of a dataset are left out. `started` is Unix time.
    """

    id: str
    run_id: str
    stage: str
    kind: str
    status: str
    started: float
    seconds: float
    code_version: str
    commit: str
    dirty: bool
    config: dict[str, Any]
    config_digest: str
    seed: int
    environment: str
    hardware: str
    cost: dict[str, float]
    counts: dict[str, int]
    used: list[tuple[str, str]]
    made: list[tuple[str, str]]
    error: str
    message: str


class Activities(BaseModel):
    """A page of activities in the order of recording; `next` is the `after` of the next page, -1 at the end."""

    items: list[ActivityOut]
    next: int


class EventOut(BaseModel):
    """Something that happened to `subject`; `time` is Unix time."""

    id: int
    kind: str
    subject: str
    payload: dict[str, Any]
    time: float
    previous: str
    digest: str


class Events(BaseModel):
    """A page of events in order; `next` is the `after` of the next page, -1 at the end."""

    items: list[EventOut]
    next: int


class Problem(BaseModel):
    """Why a request was refused, in one line."""

    detail: str
