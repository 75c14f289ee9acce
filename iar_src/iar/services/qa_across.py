"""Questions over two documents: the one thing that a teacher makes of more than one document at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from iar.config import QaBuildSection
from iar.methods.shared_anchors import Crossing, shared_anchors
from iar.methods.splits import assign_splits
from iar.methods.teaching import Crossed
from iar.records import Anchor, Chunk
from iar.services.qa_documents import Prepared
from iar.services.qa_lessons import make_teacher, read_lessons
from iar.services.workspace import Context


def crosses(settings: QaBuildSection) -> bool:
    """Whether the run file asks for questions over two documents, and of a teacher that can write them."""
    return settings.teacher != "offline" and settings.cross_questions > 0


def ask_across(
    settings: QaBuildSection,
    prepared: Prepared,
    shards: Sequence[Path],
    chunks: Iterable[Chunk],
    context: Context,
) -> Crossed:
    """Return the questions about pairs of the test's chunks, and what was dropped on the way.

    In memory are the names of these chunks and of their anchors, and the texts of the chunks that are asked about.
    """
    if not crosses(settings):
        return Crossed()
    named, anchors = _held_out(settings, shards)
    crossings = shared_anchors(named, anchors, settings.cross_questions)
    asked = {chunk.id for crossing in crossings for chunk in (crossing.first, crossing.second)}
    whole = {chunk.id: chunk for chunk in chunks if chunk.id in asked}
    teacher = make_teacher(settings, context.state, prepared)
    pairs = [Crossing(whole[one.first.id], whole[one.second.id], one.anchor) for one in crossings]
    return teacher.ask_across(pairs, context.seed, context.progress.update)


def _held_out(settings: QaBuildSection, shards: Sequence[Path]) -> tuple[list[Chunk], list[Anchor]]:
    """Return the chunks of the test without their texts, and their anchors."""
    named: list[Chunk] = []
    anchors: list[Anchor] = []
    for lesson in read_lessons(shards):
        split_of = assign_splits(lesson.chunks, settings.validation_share, settings.test_share, settings.split_salt)
        named += (replace(chunk, text="") for chunk in lesson.chunks if split_of[chunk.id] == "test")
        anchors += (anchor for anchor in lesson.anchors if split_of[anchor.chunk_id] == "test")
    return named, anchors
