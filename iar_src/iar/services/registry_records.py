"""What the registry says of activities, edges and events, and the digests that show whether any of it was changed."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iar.methods.digest import canonical_json, digest_json

SHOWN_DIGITS = 12
MANY = 500
DRAWN_FROM = "drawn-from"  # the role of the documents that a dataset's members are about

RUNNING, FINISHED, FAILED, KILLED = "running", "finished", "failed", "killed"


@dataclass(frozen=True)
class Producer:
    """The execution of a stage, which made entries or ended without a result.

    started: Unix time; seconds: how long it took. code_version: digest of the code that ran, commit: of the checkout it
    stood in, "" outside one, `dirty` where files of it were changed. config: the effective settings, config_digest
    theirs; environment: digest of the list of installed packages. cost: amounts by unit, such as "tokens".
    kind: what was done, such as "train", "" where it is not on record. used, made: (role, digest) of inputs and
    outputs, rows left out. counts: of a step of a QA build how many items came in and stayed, and which fell out why.
    Of one without a result: `error` its class, `message` its one line.
    """

    run_id: str
    stage: str
    code_version: str
    config_digest: str
    seed: int
    started: float
    seconds: float
    status: str = FINISHED
    commit: str = ""
    dirty: bool = False
    environment: str = ""
    hardware: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    used: tuple[tuple[str, str], ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    kind: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, payload: str) -> "Producer":
        """Return what a payload says. Raises ValueError or TypeError for a text that is none."""
        fields = json.loads(payload)
        pairs = {name: tuple((role, digest) for role, digest in fields.get(name, ())) for name in ("used", "made")}
        return cls(**fields | pairs)

    @property
    def id(self) -> str:
        """Digest of what decides the work: the same work done again is the same activity, each try without a result
        is one of its own."""
        deciding = DECIDING if self.status == FINISHED else TRIED
        return digest_json({name: getattr(self, name) for name in deciding})

    @property
    def payload(self) -> str:
        """Everything as canonical JSON."""
        return canonical_json(dataclasses.asdict(self))


DECIDING = ("run_id", "stage", "code_version", "config_digest", "seed")
TRIED = (*DECIDING, "started")


@dataclass(frozen=True, order=True)
class Edge:
    """`product` was made from `input`, which played `role`, by `activity`."""

    product: str
    role: str
    input: str
    activity: str


@dataclass(frozen=True)
class Event:
    """Something that happened to `subject`; `previous` is the digest of the event before it."""

    id: int
    kind: str
    subject: str
    payload: dict[str, Any]
    time: float
    previous: str
    digest: str

    @classmethod
    def parse(cls, row: dict[str, Any]) -> "Event":
        """Return the event that a row holds."""
        return cls(**row | {"payload": json.loads(row["payload"])})


def short_id(kind: str, digest: str) -> str:
    """Return the identity shown to people, such as `checkpoint:3f9a01bc77de`."""
    return f"{kind}:{digest[:SHOWN_DIGITS]}"


def entity_record(kind: str, digest: str, name: str, payload: str) -> bytes:
    """Return the 32 bytes that an entity's row must have."""
    return bytes.fromhex(digest_json({"kind": kind, "digest": digest, "name": name, "payload": payload}))


def activity_record(digest: str, run_id: str, stage: str, payload: str) -> bytes:
    """Return the 32 bytes that an activity's row must have."""
    return bytes.fromhex(digest_json({"digest": digest, "run_id": run_id, "stage": stage, "payload": payload}))


def inputs_digest(inputs: Iterable[tuple[str, str]]) -> bytes:
    """Return the digest of (role, input digest) pairs in any order; roles hold no colon and no line end."""
    return hashlib.sha256("".join(f"{role}:{digest}\n" for role, digest in sorted(inputs)).encode()).digest()


def sizes_of(roles: Collection[str]) -> str:
    """Return how many edges a making has by role, as JSON; "" where they are few and soon counted."""
    return canonical_json(Counter(roles)) if len(roles) > MANY else ""


def recording_content(
    activity_record_: bytes, makings: int, root: str, time: float, previous: str
) -> dict[str, int | float | str]:
    """Return what the digest of a recording covers: the activity, all that it made, and the recording before."""
    return {"activity": activity_record_.hex(), "makings": makings, "root": root, "time": time, "previous": previous}
