"""Last part of the QA build: all lessons into one dataset, its account and its lineage.

The bytes written do not depend on the number of shards.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from iar.config import QaBuildSection, RunFile
from iar.errors import UserError
from iar.methods.filter_report import filter_table
from iar.methods.funnel import check_funnel, funnel_table
from iar.methods.splits import SPLITS
from iar.methods.teaching import BOTH
from iar.records import (
    Anchor,
    Chunk,
    Document,
    FunnelStep,
    Outcome,
    QAPair,
    RecordWriter,
    SourceFacts,
    to_json,
    write_json,
    write_records,
)
from iar.services.decontamination import Decontamination, check_lines, write_checks
from iar.services.earlier_sets import NO_SETS, EarlierSets
from iar.services.ingest import DOCUMENTS, FILTER, SOURCES
from iar.services.qa_documents import FUNNEL, REJECTS, Prepared
from iar.services.qa_earlier import STEP as RETAINED
from iar.services.qa_lessons import AUGMENTED, shards_funnel
from iar.services.qa_lineage import Contents, Grouped, write_lineage
from iar.services.qa_selection import ANCHORS, ASKED, CHUNKS, Selected, Spread, select, spread_lessons
from iar.services.record_file import Lines, RecordFile
from iar.services.reject_log import RejectLog, read_rejects
from iar.services.workspace import LINEAGE, WITHHELD, Context

# Beside the test: locked like it, and scored apart.
CROSS_FILE = "test-cross-document.jsonl"


def gather(
    run_file: RunFile, prepared: Prepared, shards: Sequence[Path], out: Path, aside: Path, context: Context,
    sets: EarlierSets = NO_SETS,
) -> Outcome:  # fmt: skip
    """Write the dataset under `out`; what is dropped on the way stands in rejects.parquet, counted in funnel.json.

    `shards`: the folders of `teach_shard` in order. `aside`: an empty folder for what is not yet known to stay. `sets`
    are what the model learned before. Raises UserError where a split comes out empty.
    """
    for path in (prepared.folder / name for name in (DOCUMENTS, SOURCES, FILTER, WITHHELD)):
        if path.exists():  # the last only where a retracted document was met
            shutil.copyfile(path, out / path.name)
    with RejectLog(out / REJECTS) as rejects:
        rejects.add(read_rejects(prepared.folder / REJECTS))
        spread = spread_lessons(prepared, shards, out, aside, rejects)
        with RecordFile(aside / ASKED, QAPair) as asked:
            selected = select(run_file, prepared, shards, asked, spread.chunk_words, out, aside, context, rejects, sets)
        funnel = _funnel(prepared, shards, selected, rejects)
        written = _write_splits(out, selected.pairs)
        _check_splits(written.by_split, spread, run_file.qa_build)
    write_json(out / FUNNEL, [to_json(step) for step in funnel])
    checks = [prepared.checked(), *selected.checks]
    write_checks(out, checks)
    contents = _contents(out, selected, written)
    made = _lineage(out, prepared, selected, contents, run_file.qa_build, sets)
    lineage = write_lineage(out / LINEAGE, made, out / REJECTS, rejects.counts)
    digest = next(entry.digest for entry in lineage if entry.kind == "dataset")
    write_json(out / "dataset.json", {"digest": digest} | contents)
    counts = {"documents": prepared.count(), "chunks": spread.counts["chunks"], "anchors": spread.counts["anchors"]}
    counts |= contents | {"rejects": rejects.counts.total()}
    metrics = {name: float(count) for name, count in counts.items()}
    return Outcome(metrics, _markdown(written, funnel, prepared, checks), tuple(lineage))


def _funnel(prepared: Prepared, shards: Sequence[Path], selected: Selected, rejects: RejectLog) -> list[FunnelStep]:
    """Return the whole account. Raises PermanentError where something vanished without a reason."""
    taught, pairs = shards_funnel(shards), len(selected.pairs)
    funnel = [
        *prepared.funnel(),
        *(step for step in taught if step.step != AUGMENTED),
        rejects.step("deduplicated", "question", selected.asked, selected.unique),
        rejects.step("decontaminated", "question", selected.unique, pairs),
        rejects.step("split", "question", pairs, pairs),
        *(step for step in taught if step.step == AUGMENTED),
        *selected.crossed,
    ]
    if selected.retold:
        kept = sum(1 for _ in selected.retellings)
        funnel.append(rejects.step("augmented_uncontaminated", "retelling", selected.retold, kept))
    if selected.written:
        funnel.append(rejects.step("cross_deduplicated", BOTH, selected.written, selected.separate))
        funnel.append(rejects.step("cross_decontaminated", BOTH, selected.separate, len(selected.cross)))
    if selected.earlier:
        funnel.append(rejects.step(RETAINED, "earlier question", selected.earlier, selected.retained))
    check_funnel(funnel, rejects.counts)
    return funnel


@dataclass(frozen=True)
class _Written:
    """The questions in figures."""

    by_split: Counter[str]
    by_type: Counter[str]
    teacher: str

    @property
    def line(self) -> str:
        """In one line."""
        splits = ", ".join(f"{split} {self.by_split[split]}" for split in SPLITS)
        types = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(self.by_type.items()))
        return f"**{self.by_split.total()} questions** by teacher `{self.teacher}`: {splits}; {types}"


def _write_splits(out: Path, pairs: Iterable[QAPair]) -> _Written:
    by_split: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    teacher = ""
    with ExitStack() as files:
        writers = {split: files.enter_context(RecordWriter(out / f"{split}.jsonl")) for split in SPLITS}
        for pair in pairs:
            writers[pair.split].write([pair])
            by_split[pair.split] += 1
            by_type[pair.question_type] += 1
            teacher = pair.teacher
    return _Written(by_split, by_type, teacher)


def _check_splits(by_split: Counter[str], spread: Spread, settings: QaBuildSection) -> None:
    """Refuse a dataset with an empty split, naming what to change."""
    size = "chunk_tokens" if settings.chunk_tokens else "chunk_characters"
    for split in SPLITS:
        if not by_split[split]:
            share = "the sum of the shares" if split == "train" else f"qa_build.{split}_share"
            raise UserError(
                f"qa_build: no question in the {split} split ({by_split.total()} questions from "
                f"{spread.counts['chunks']} chunks); "
                f"add documents, lower qa_build.{size}, or change {share} or qa_build.split_salt"
            )


def _contents(out: Path, selected: Selected, written: _Written) -> dict[str, int]:
    """Write the questions over two documents; return how much of everything there is."""
    contents = {"pairs": len(selected.pairs)} | {split: written.by_split[split] for split in SPLITS}
    if selected.cross:
        contents["cross_document"] = write_records(out / CROSS_FILE, selected.cross)
    if selected.retained:
        contents["retained"] = selected.retained
    if retellings := sum(1 for _ in selected.retellings):
        contents["retellings"] = retellings
    return contents


def _lineage(
    out: Path, prepared: Prepared, selected: Selected, counts: dict[str, int], settings: QaBuildSection,
    sets: EarlierSets,
) -> Contents:  # fmt: skip
    return Contents(
        documents=Lines(out / DOCUMENTS, Document),
        sources=Lines(out / SOURCES, SourceFacts),
        chunks=Grouped(Lines(out / CHUNKS, Chunk), lambda one: one.document_id),
        anchors=Grouped(Lines(out / ANCHORS, Anchor), lambda one: one.chunk_id),
        pairs=Grouped(selected.pairs, lambda one: one.document_id),
        cross=selected.cross,
        retellings=Grouped(selected.retellings, lambda one: one.document_id),
        counts=counts,
        split_salt=settings.split_salt,
        teacher=settings.teacher,
        retains=tuple(one.dataset_digest for one in sets),
        scorers=prepared.scorers(),
    )


def _markdown(
    written: _Written, funnel: Sequence[FunnelStep], prepared: Prepared, checks: Sequence[Decontamination]
) -> str:
    lines = [f"- {line}" for one in checks for line in check_lines(one.checks)]
    return "\n".join([written.line, "", funnel_table(funnel), "", filter_table(prepared.scorers()), "", *lines])
