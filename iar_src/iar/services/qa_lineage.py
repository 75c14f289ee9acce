"""The registry entries of a dataset as a file: each document with its chunks and questions, the dataset last."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

from iar.config import Endpoint
from iar.methods.digest import canonical_json, digest_json
from iar.methods.filter_report import ScorerReport
from iar.methods.merkle import merkle_root
from iar.methods.textnorm import words_of
from iar.records import (
    Anchor,
    Chunk,
    CrossDocumentPair,
    Document,
    Lineage,
    QAPair,
    RecordWriter,
    Retelling,
    SourceFacts,
    to_json,
)
from iar.services.dataset_lineage import (
    CERTIFIED_BY,
    FILTERED_BY,
    WRITTEN_BY,
    anchor_entries,
    certifier_entries,
    document_entry,
    rejects_entry,
    retelling_words,
    scorer_entries,
    source_entries,
    teacher_entries,
)
from iar.services.registry_records import DRAWN_FROM

RETAINS = "retains"  # the role of a dataset whose validation questions this one asks again
LOCKED = ("question", "answer", "key", "aliases", "anchor")
DIGEST_BYTES = 32


Own = TypeVar("Own")


class Grouped(Generic[Own]):
    """Records that lie in the order of their owners, handed out an owner at a time."""

    def __init__(self, records: Iterable[Own], owner: Callable[[Own], str]) -> None:
        self._groups = groupby(records, owner)
        self._next = next(self._groups, None)

    def of(self, owner: str) -> list[Own]:
        """Return the owner's records; ask for the owners in their order."""
        if self._next is None or self._next[0] != owner:
            return []
        own = list(self._next[1])
        self._next = next(self._groups, None)
        return own


@dataclass(frozen=True)
class Contents:
    """What a dataset is made of, all in the order of the documents; `retains` are the datasets of earlier sets."""

    documents: Iterable[Document]
    sources: Iterable[SourceFacts]
    chunks: Grouped[Chunk]
    anchors: Grouped[Anchor]
    pairs: Grouped[QAPair]
    cross: Sequence[CrossDocumentPair]
    retellings: Grouped[Retelling]
    counts: dict[str, int]
    split_salt: str
    teacher: Endpoint | str
    retains: tuple[str, ...] = ()
    scorers: Iterable[ScorerReport] = ()


def write_lineage(path: Path, made: Contents, rejects: Path, dropped: Mapping[tuple[str, str], int]) -> list[Lineage]:
    """Write all entries of a dataset; return those few that people look at: agents, scorers, dataset, rejects.

    The dataset's digest is of its counts and of all that it contains. `dropped`: the number in `rejects` by step and
    reason. In memory are a digest of each document and question and the ids of the questions.
    """
    found = _Digests()
    with RecordWriter(path) as entries:
        for document, facts in zip(made.documents, made.sources, strict=True):
            entries.write(_of_document(document, facts, made, found))
        about = ((pair, (pair.chunk_id, pair.other_chunk_id)) for pair in made.cross)
        both = [_question(pair, *(("about", found.across[name]) for name in chunks)) for pair, chunks in about]
        found.add(made.cross, both)
        teachers = list(teacher_entries(found.teachers))
        certifiers = list(certifier_entries(made.teacher, bool(found.retold)))
        scorers = list(scorer_entries(made.scorers))
        contents = bytes(found.asked + found.retold)
        digest = _dataset_digest(contents, made.counts)
        facts_of = {"merkle_root": merkle_root(found.ids), "split_salt": made.split_salt}
        by = tuple((WRITTEN_BY, entry.digest) for entry in teachers)
        by += tuple((CERTIFIED_BY, entry.digest) for entry in certifiers)
        by += tuple((FILTERED_BY, entry.digest) for entry in scorers)
        dataset = Lineage("dataset", digest, "qa", made.counts | facts_of, by)
        left_out = rejects_entry(rejects, dropped, digest)
        inside = tuple(("contains", one) for one in _each(contents))
        drawn = tuple((DRAWN_FROM, one) for one in _each(bytes(found.documents)))
        kept = tuple((RETAINS, one) for one in made.retains)
        agents = [*teachers, *certifiers, *scorers]
        entries.write([*both, *agents, replace(dataset, inputs=(*inside, *drawn, *by, *kept)), left_out])
    return [*agents, dataset, left_out]


@dataclass
class _Digests:
    """What is known of all entries at the end; digests are DIGEST_BYTES each."""

    documents: bytearray = field(default_factory=bytearray)
    asked: bytearray = field(default_factory=bytearray)
    retold: bytearray = field(default_factory=bytearray)
    ids: list[str] = field(default_factory=list)
    teachers: set[str] = field(default_factory=set)
    across: dict[str, str] = field(default_factory=dict)

    def add(self, pairs: Sequence[QAPair], entries: Sequence[Lineage]) -> None:
        """Take up questions and their entries."""
        self.asked += _digests(entries)
        self.ids += (pair.id for pair in pairs)
        self.teachers.update(pair.teacher for pair in pairs)


def _of_document(document: Document, facts: SourceFacts, made: Contents, found: _Digests) -> Iterator[Lineage]:
    """Yield the entries of a document and of all that was made of it, inputs first."""
    whole = document_entry(document, facts)
    chunks = made.chunks.of(document.id)
    own = {chunk.id: _entry("chunk", chunk.id, chunk, ("part-of", whole.digest)) for chunk in chunks}
    digests = {name: entry.digest for name, entry in own.items()}
    pairs, texts = made.pairs.of(document.id), made.retellings.of(document.id)
    questions = [_question(pair, ("about", digests[pair.chunk_id])) for pair in pairs]
    told = [_retelling(one, whole.digest) for one in texts]
    across = {name for pair in made.cross for name in (pair.chunk_id, pair.other_chunk_id)}
    found.across |= {name: digests[name] for name in across & digests.keys()}
    found.documents += bytes.fromhex(whole.digest)
    found.add(pairs, questions)
    found.retold += _digests(told)
    found.teachers.update(one.teacher for one in texts)
    yield from source_entries([document])
    yield whole
    yield from own.values()
    yield from anchor_entries((anchor for chunk in chunks for anchor in made.anchors.of(chunk.id)), digests)
    yield from (*questions, *told)


def _question(pair: QAPair, *inputs: tuple[str, str]) -> Lineage:
    entry = _entry("qa", pair.id, pair, *inputs)
    return replace(entry, payload=entry.payload | {"words": len(words_of(f"{pair.question} {pair.answer}"))})


def _retelling(made: Retelling, document: str) -> Lineage:
    entry = _entry("retelling", made.id, made, ("written-from", document))
    return replace(entry, payload=entry.payload | retelling_words(made))


def _entry(kind: str, name: str, record: Chunk | QAPair | Retelling, *inputs: tuple[str, str]) -> Lineage:
    """Return a record's entry; the digest is that of the whole record, the payload leaves out long text.

    Of the test it leaves out what is asked and answered too: a registry has readers, and the test is locked.
    """
    whole = to_json(record)
    hidden = {"text", *(LOCKED if whole.get("split") == "test" else ())}
    return Lineage(kind, digest_json(whole), name, {key: whole[key] for key in whole if key not in hidden}, inputs)


def _digests(entries: Iterable[Lineage]) -> bytes:
    return b"".join(bytes.fromhex(entry.digest) for entry in entries)


def _each(contents: bytes) -> Iterator[str]:
    return (contents[start : start + DIGEST_BYTES].hex() for start in range(0, len(contents), DIGEST_BYTES))


def _dataset_digest(contents: bytes, counts: dict[str, int]) -> str:
    """Return the digest of `counts` with the list of `contents`, as `digest_json` has it; the list comes first."""
    found = hashlib.sha256(b'{"contains":[')
    for number, digest in enumerate(_each(contents)):
        found.update(b"," * (number > 0) + canonical_json(digest).encode())
    found.update(b"]," + canonical_json(counts)[1:].encode())
    return found.hexdigest()
