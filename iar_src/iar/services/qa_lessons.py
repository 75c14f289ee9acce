"""Second part of the QA build, which is spread over shards: what the teacher makes of each document on its own.

Shard i of n takes every n-th document. A line of lessons.jsonl holds all that came of one document, and the lines of
all shards, taken in turn, are those of a single one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from iar.config import Endpoint, QaBuildSection
from iar.errors import PermanentError
from iar.methods.chunking import Measure, chunk_document
from iar.methods.funnel import add_up
from iar.methods.offline_teacher import OfflineTeacher
from iar.methods.splits import assign_splits, with_splits
from iar.methods.teaching import Lesson, Teacher, funnel_step, lessons_of
from iar.records import Document, FunnelStep, RecordWriter, read_records, to_json, write_json
from iar.services.models import load_tokenizer
from iar.services.qa_documents import FUNNEL, Prepared, read_funnel

LESSONS = "lessons.jsonl"
AUGMENTED = "augmented"
# So much text is taught at once: a server's places stay taken, and little is in memory.
BATCH_CHARACTERS = 1 << 19


def teach_shard(
    settings: QaBuildSection,
    prepared: Prepared,
    base: Path | None,
    state: Path,
    seed: int,
    out: Path,
    shard: int = 1,
    shards: int = 1,
    on_progress: Callable[[float, float], None] | None = None,
) -> None:
    """Write the lessons of every `shards`-th document under `out`, and their account last.

    `base`: the model whose tokens are counted, where any are. `state`: the folder that keeps the replies of a language
    model. Raises what the teacher raises; the same call goes on with the replies that came.
    """
    count_tokens = token_counter(settings, base)
    measure: tuple[int, Measure] = (settings.chunk_characters, len)
    if settings.chunk_tokens:
        measure = (settings.chunk_tokens, count_tokens)
    teacher = make_teacher(settings, state, prepared)
    total, done, funnels = prepared.count(), 0, []
    with RecordWriter(out / LESSONS) as lessons:
        for documents in _batches(islice(prepared.documents(), shard - 1, None, shards)):
            report = _part_of(on_progress, done * shards, len(documents) * shards, total)
            chunks = [chunk for document in documents for chunk in chunk_document(document, *measure)]
            taught = teacher.build(documents, chunks, settings.max_anchors, seed, report)
            retold = teacher.retell(documents, chunks, taught.anchors, seed, count_tokens)
            made = [_with_splits(one, settings) for one in lessons_of(documents, chunks, taught, retold)]
            lessons.write(made)
            funnels.append(_account(taught.funnel, made, settings))
            done += len(documents)
    write_json(out / FUNNEL, [to_json(step) for step in add_up(funnels)])


def make_teacher(settings: QaBuildSection, state: Path, prepared: Prepared) -> Teacher:
    """Return the teacher that the run file names."""
    if settings.teacher == "offline":
        return OfflineTeacher(settings.rewrite_inputs, prepared.corpus())
    from iar.services.llm_teacher import LlmTeacher

    # Replies outlive the work folder: a rerun with another split buys nothing twice.
    return LlmTeacher(settings.teacher, state / "llm-cache", settings=settings)


def share_of_servers(settings: QaBuildSection) -> QaBuildSection:
    """Return the settings of one of several shards that run at once: they share the calls in flight to a server."""
    if not isinstance(settings.teacher, Endpoint):
        return settings
    calls = max(1, settings.teacher.concurrency // settings.shards)
    return settings.model_copy(update={"teacher": settings.teacher.model_copy(update={"concurrency": calls})})


def token_counter(settings: QaBuildSection, base: Path | None) -> Callable[[str], int]:
    """Return the function that counts the model's tokens. Where none are to be counted it is never called."""
    if not settings.counts_tokens:
        return len
    if base is None:
        raise PermanentError(
            "qa_build.chunk_tokens: the pipeline gives qa-build no model to count with; compile it again"
        )
    tokenizer = load_tokenizer(base)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def read_lessons(shards: Sequence[Path]) -> Iterator[Lesson]:
    """Yield the lessons of all shards in the order of the documents."""
    waiting = [read_records(folder / LESSONS, Lesson) for folder in shards]
    for lessons in cycle(waiting):
        lesson = next(lessons, None)
        if lesson is None:  # the shard whose turn it is has no more, so none has
            return
        yield lesson


def shards_funnel(shards: Sequence[Path]) -> list[FunnelStep]:
    """Return the account of all shards together."""
    return add_up(read_funnel(folder / FUNNEL) for folder in shards)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _with_splits(lesson: Lesson, settings: QaBuildSection) -> Lesson:
    split_of = assign_splits(lesson.chunks, settings.validation_share, settings.test_share, settings.split_salt)
    return replace(lesson, pairs=tuple(with_splits(lesson.pairs, split_of)))


def _account(taught: Sequence[FunnelStep], lessons: Sequence[Lesson], settings: QaBuildSection) -> list[FunnelStep]:
    """Return the steps of some documents, from their chunks on."""
    steps = [funnel_step("chunks", "chunk", sum(len(one.chunks) for one in lessons), []), *taught]
    if settings.augment:
        dropped = (reject for one in lessons for reject in one.rejects)
        steps.append(funnel_step(AUGMENTED, "retelling", sum(len(one.retellings) for one in lessons), dropped))
    return steps


def _part_of(
    on_progress: Callable[[float, float], None] | None, done: int, more: int, total: int
) -> Callable[[int, int], None] | None:
    """Report a batch of `more` documents after `done` as a part of all."""
    if on_progress is None:
        return None
    return lambda step, steps: on_progress(done + more * step / max(1, steps), total)
