"""The evidence behind the scores: how far the judges agree, and replies to read with one's own eyes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iar.methods.agreement import Agreement, agreement
from iar.records import Candidate, ItemScore, LayerFacts, QAPair, Reply, read_records

NUM_SAMPLES = 10
LAYERS = "layers.jsonl"
# The order of the suites that judges vote on; those of the user come after, by name.
FIRST = ("domain", "msbench", "cross_document", "retention")


@dataclass(frozen=True)
class PanelFacts:
    """The judges on one suite of one split, over all models; `versions` by judge, in the panel's order."""

    split: str
    suite: str
    versions: tuple[tuple[str, str], ...]
    agreement: Agreement


@dataclass(frozen=True)
class SampleReply:
    """What one model answered, its settled score in [0, 1] (None = unscored), and how that was settled."""

    model: str
    text: str
    truncated: bool
    score: float | None
    note: str


@dataclass(frozen=True)
class Sample:
    """A test question, its reference answer with the words in it that decide, and the replies of several models."""

    question: str
    reference: str
    key: str
    replies: tuple[SampleReply, ...]


def panel_facts(
    folders: Mapping[str, Iterable[Path]], judges: Sequence[str], resamples: int, seed: int
) -> tuple[PanelFacts, ...]:
    """Return the agreement of the judges by split and suite, from the vote archives below `folders`."""
    return tuple(
        fact
        for split, places in folders.items()
        for fact in _facts_of_split(split, list(places), judges, resamples, seed)
    )


def _facts_of_split(
    split: str, folders: Sequence[Path], judges: Sequence[str], resamples: int, seed: int
) -> Iterator[PanelFacts]:
    import pyarrow.compute

    from iar.services.vote_archive import read_table, reply_facts, to_ballots, vote_files

    table = read_table(path for folder in folders for path in vote_files(folder))
    if table is None:
        return
    facts = {key: found for folder in folders for key, found in reply_facts(folder).items()}
    judged = sorted(table["suite"].unique().to_pylist())
    for suite in (*(name for name in FIRST if name in judged), *(name for name in judged if name not in FIRST)):
        votes = table.filter(pyarrow.compute.equal(table["suite"], suite))
        named = zip(votes["judge"].to_pylist(), votes["judge_version"].to_pylist(), strict=True)
        cast = sorted(set(named))
        versions = [(judge, ", ".join(version for name, version in cast if name == judge)) for judge in judges]
        yield PanelFacts(split, suite, tuple(versions), agreement(to_ballots(votes, judges, facts), resamples, seed))


def samples(tested: Path, pick: str) -> tuple[Sample, ...]:
    """Return NUM_SAMPLES test questions, evenly spread over the test, with the replies of the pick and of vanilla."""
    pairs = list(read_records(tested / "questions.jsonl", QAPair))
    count = min(NUM_SAMPLES, len(pairs))
    chosen = [pairs[place * len(pairs) // count] for place in range(count)]
    replies = {model: _replies(tested / model, model) for model in (pick, "vanilla")}
    return tuple(
        Sample(
            pair.question,
            pair.answer,
            pair.key,
            tuple(known[pair.id] for known in replies.values() if pair.id in known),
        )
        for pair in chosen
    )


def _replies(folder: Path, model: str) -> dict[str, SampleReply]:
    settled = {item.item_id: item for item in read_records(folder / "items.jsonl", ItemScore)}
    return {
        reply.item_id: SampleReply(
            model, reply.text, reply.truncated, settled[reply.item_id].score, settled[reply.item_id].note
        )
        for reply in read_records(folder / "replies.jsonl", Reply)
        if reply.item_id in settled
    }


def read_layers(artifacts: Iterable[Path], candidates: Iterable[Candidate]) -> Iterator[LayerFacts]:
    """Yield the facts by block and kind of each candidate that has them: those of older runs have none."""
    folders = list(artifacts)
    for candidate in candidates:
        for path in (folder / candidate.id / LAYERS for folder in folders):
            if path.is_file():
                yield from read_records(path, LayerFacts)
