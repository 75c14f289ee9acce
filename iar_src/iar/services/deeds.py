"""What is done by hand, and each opening of the test, as activities: promote, retract, restore, erase, read-test.

An event says what holds from then on; the activity beside it says with which code and settings, where, when, by whom.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from iar.errors import UserError
from iar.methods.digest import digest_json
from iar.records import Lineage
from iar.services.code_digests import code_digest
from iar.services.registry import Event, Registry
from iar.services.registry_records import FINISHED, Producer
from iar.services.surroundings import surroundings

DECIDED_BY = "decided-by"


@dataclass(frozen=True)
class Deed:
    """A deed that begins now. `by` is the person who decides, "" where nobody was named; `seed` the run's, if any."""

    kind: str
    config: dict[str, Any]
    run_id: str = ""
    by: str = ""
    seed: int = 0
    started: float = field(default_factory=time.time)

    @property
    def people(self) -> list[Lineage]:
        """The entry of the person who decides, if one is named."""
        return [person(self.by)] if self.by else []

    def record(
        self, registry: Registry, event: Event, used: Iterable[tuple[str, str]], made: Iterable[Lineage] = ()
    ) -> None:
        """Record that it is done, beside its event, once; `used` is (role, digest) of its inputs.

        Of these, only what the registry knows is kept: a file may be retracted before any run has seen it.
        """
        config = self.config | {"subject": event.subject, "event": event.digest}
        given, results = list(used), list(made)
        known = registry.labels(digest for _, digest in given)
        inputs = [pair for pair in given if pair[1] in known] + [(DECIDED_BY, one.digest) for one in self.people]
        producer = Producer(
            self.run_id, self.kind, code_digest("deeds", "services"), digest_json(config), self.seed, self.started,
            time.time() - self.started, FINISHED, **vars(surroundings()), config=config,
            used=tuple(inputs), made=tuple((one.kind, one.digest) for one in results), kind=self.kind,
        )  # fmt: skip
        if self.people or results:
            registry.record([*self.people, *results], producer)
        else:
            registry.activity(producer)


def person(name: str) -> Lineage:
    """Return the entry of a person who decides."""
    payload = {"role": "person", "name": name}
    return Lineage("agent", digest_json(payload), name, payload)


def said(option: str, text: str, fix: str) -> str:
    """Return what was given with an option in one line. Raises UserError where that says nothing."""
    text = " ".join(text.split())
    if not text or not text.isprintable():
        raise UserError(f"{option} {text!r}: says nothing; {fix}")
    return text
