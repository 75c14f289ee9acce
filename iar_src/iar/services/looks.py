"""How often an evaluation set was looked at: each model scored on it is a look, and whoever chooses by it wears it out.

A look is an event of the registry whose subject is the digest of the set, entered before the model is asked. The same
weights asked the same again are no further look.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from iar.methods.suite_grading import JUDGE
from iar.records import EvalItem, Look, from_json, to_json, write_json
from iar.services.registry import Registry
from iar.services.subjects import Subject
from iar.services.suites import is_judged
from iar.services.vault import set_digest
from iar.services.workspace import LOOKS, Context

LOOK = "look"


def record_looks(
    out: Path, subjects: Sequence[Subject], suites: Mapping[str, Sequence[EvalItem]], split: str, context: Context
) -> None:
    """Enter a look of each model at each set, and write beside the scores how many there are by then.

    That file is no content of the artifact: the scores are the same at any look.
    """
    registry = context.registry()
    try:
        looks = list(_looks(subjects, suites, split, registry))
    finally:
        registry.close()
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / LOOKS, [to_json(one) for one in looks])


def _looks(
    subjects: Sequence[Subject], suites: Mapping[str, Sequence[EvalItem]], split: str, registry: Registry
) -> Iterator[Look]:
    digests = {name: set_digest(items) for name, items in suites.items() if items}
    for subject in subjects:
        for name, digest in digests.items():
            looks = _entered(subject, name, split, digest, registry)
            items = suites[name]
            yield Look(subject.model, name, split, digest, len(items), items[0].private, looks, _scorer(items[0]))


def _scorer(item: EvalItem) -> str:
    """Return by what replies to an item are graded: judges, the rule a suite names, or the suite's own."""
    return JUDGE if is_judged(item) else str(item.reference.get("verifier", item.suite))


def _entered(subject: Subject, suite: str, split: str, digest: str, registry: Registry) -> int:
    """Return the number of models that were scored on a set, after entering this one."""
    seen = {event.payload["weights"] for event in registry.events(digest, [LOOK])}
    if subject.digest not in seen:
        looked = {"weights": subject.digest, "model": subject.model, "suite": suite, "split": split}
        registry.event(LOOK, digest, looked)
    return len(seen | {subject.digest})


def read_looks(folders: Iterable[Path]) -> Iterator[Look]:
    """Yield the looks behind the scores in the folders of evaluations; none where an older version scored."""
    for path in (folder / LOOKS for folder in folders):
        if path.is_file():
            yield from (from_json(Look, one) for one in json.loads(path.read_text(encoding="utf-8")))
