"""What a dataset version says of itself beside its questions: files, anchors, teachers, what was left out.

Documents and teachers are inputs of the dataset itself too: who asks what a model was made from need not read a
million questions to learn it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import iar
from iar.config import Endpoint
from iar.methods.digest import digest_file, digest_json
from iar.methods.offline_teacher import CERTIFIERS
from iar.methods.textnorm import words_of
from iar.records import Anchor, Document, Lineage, Retelling, SourceFacts, to_json

if TYPE_CHECKING:
    from iar.methods.filter_report import ScorerReport

READ_FROM, WRITTEN_BY, IN, DROPPED_FROM = "read-from", "written-by", "in", "dropped-from"
CERTIFIED_BY, FILTERED_BY = "certified-by", "filtered-by"
RULES = "offline"
PROMPTS = Path(iar.__file__).parent / "prompts"
FILTER_CODE = Path(iar.__file__).parent / "methods" / "scorers.py"


def source_entries(documents: Iterable[Document]) -> Iterator[Lineage]:
    """Yield an entry a source file or row, named by the SHA-256 of its bytes: what a retraction holds on to."""
    for document in documents:
        yield Lineage("source", document.source_digest, document.source, {"media_type": document.media_type})


def document_entry(document: Document, found: SourceFacts) -> Lineage:
    """Return a document's entry: the number of its words in place of its text, and what was found where it was got.

    The digest is of the document alone.
    """
    whole = to_json(document)
    payload = {key: whole[key] for key in whole if key != "text"}
    payload |= {"words": len(words_of(document.text)), "found": to_json(found)}
    return Lineage("document", digest_json(whole), document.source, payload, ((READ_FROM, document.source_digest),))


def retelling_words(retelling: Retelling) -> dict[str, int]:
    """Return what a retelling's payload says in place of its text."""
    return {"words": len(words_of(retelling.text))}


def anchor_entries(anchors: Iterable[Anchor], chunk_digests: Mapping[str, str]) -> Iterator[Lineage]:
    """Yield an entry an anchor, in its chunk; `chunk_digests` are by chunk id."""
    for anchor in anchors:
        payload = to_json(anchor)
        name = f"{anchor.chunk_id}:{anchor.start}-{anchor.end}"
        yield Lineage("anchor", digest_json(payload), name, payload, ((IN, chunk_digests[anchor.chunk_id]),))


def teacher_entries(teachers: Iterable[str]) -> Iterator[Lineage]:
    """Yield an agent a teacher, with the digest of the prompts it was asked with; the rule-based one has none."""
    prompts = digest_json({path.name: digest_file(path) for path in sorted(PROMPTS.glob("*.txt"))})
    for teacher in sorted(set(teachers)):
        payload = {"role": "teacher", "name": teacher, "prompts": "" if teacher == RULES else prompts}
        yield Lineage("agent", digest_json(payload), teacher, payload)


def scorer_entries(reports: "Iterable[ScorerReport]") -> Iterator[Lineage]:
    """Yield an entry a rule of the file filter: its threshold in this run, and the digest of the code that scores."""
    for one in reports:
        payload = {"role": "filter", "name": one.name, "meaning": one.meaning, "threshold": one.threshold}
        payload |= {"origin": one.origin, "version": digest_file(FILTER_CODE)}
        yield Lineage("scorer", digest_json(payload), f"{one.name} of documents, {one.threshold}", payload)


def rejects_entry(rejects: Path, counts: Mapping[tuple[str, str], int], dataset: str) -> Lineage:
    """Return the entry of the file with every dropped item, its step and reason; `counts` by (step, reason)."""
    payload: dict[str, Any] = {f"{step}: {reason}": count for (step, reason), count in sorted(counts.items())}
    return Lineage("rejects", digest_file(rejects), rejects.name, payload, ((DROPPED_FROM, dataset),))


def certifier_entries(teacher: Endpoint | str, retold: bool) -> Iterator[Lineage]:
    """Yield an agent a certifier that every question of a dataset has passed, with `retold` that of retellings too.

    A rule has a version, a language model its revision, its sampling and the digest of its prompt.
    """
    if not isinstance(teacher, Endpoint):
        for step, version in CERTIFIERS.items():
            yield _certifier(step, "qa", {"name": teacher, "version": version})
        return
    from iar.services.llm_ask import load_prompt

    model = {"name": teacher.weights, "temperature": teacher.temperature, "top_p": teacher.top_p}
    for step in (*CERTIFIERS, *["faithful"] * retold):
        certifies = "retelling" if step == "faithful" else "qa"
        yield _certifier(step, certifies, model | {"prompt": load_prompt(step).version})


def _certifier(step: str, certifies: str, facts: Mapping[str, Any]) -> Lineage:
    payload = {"role": "certifier", "step": step, "certifies": certifies} | dict(facts)
    return Lineage("agent", digest_json(payload), f"{step} by {facts['name']}", payload)
