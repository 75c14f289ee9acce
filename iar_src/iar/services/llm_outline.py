"""Skeletons by a language model: a document's outline, made part by part."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from iar.methods.offline_teacher import TEACHER as OFFLINE
from iar.methods.prompting import fence
from iar.methods.skeletons import make_skeleton
from iar.records import Anchor, Chunk, Document, Skeleton
from iar.services.llm import ChatClient
from iar.services.llm_teacher_replies import Outline, ask_forms

PART_CHARACTERS = 12_000  # small enough for any server's context
MOST_SHARE = 0.5  # a longer outline would hand the row the text that it must recall


def outline(
    client: ChatClient,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    anchors: Sequence[Anchor],
    teacher: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Skeleton]:
    """Return one skeleton a document, in order.

    Where a part stays unread or the outline is too long, the rule-based skeleton takes its place, and
    the record's `teacher` says so.
    """
    chunks_of: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        chunks_of[chunk.document_id].append(chunk)
    anchors_of: dict[str, list[Anchor]] = defaultdict(list)
    for anchor in anchors:
        anchors_of[anchor.chunk_id].append(anchor)

    parts = [(document, text) for document in documents for text in _parts(document, chunks_of[document.id])]
    rows = [{"title": fence(document.title, "title"), "passage": fence(text, "passage")} for document, text in parts]
    points_of: dict[str, list[list[str]]] = defaultdict(list)
    for (document, _), asked in zip(parts, ask_forms(client, "skeleton", Outline, rows, on_progress), strict=True):
        points_of[document.id].append(list(asked.value.points) if asked.value else [])

    skeletons = []
    for document in documents:
        text = _joined(points_of[document.id])
        if text and len(text) <= MOST_SHARE * len(document.text):
            skeletons.append(Skeleton(document.id, text, teacher))
        else:
            own = [anchor for chunk in chunks_of[document.id] for anchor in anchors_of[chunk.id]]
            skeletons.append(make_skeleton(document, own, OFFLINE))
    return skeletons


def _parts(document: Document, chunks: Sequence[Chunk]) -> Iterator[str]:
    """Yield the document's text over its chunks, cut between chunks where a part would be too long."""
    start = chunks[0].start if chunks else 0
    for chunk, following in zip_longest(chunks, chunks[1:]):
        if following is None or following.end - start > PART_CHARACTERS:
            yield document.text[start : chunk.end]
            start = following.start if following else 0


def _joined(parts: Sequence[Sequence[str]]) -> str:
    """Return the points of all parts, one a line; "" where a part has none."""
    lines = [[" ".join(point.split()) for point in points if point.strip()] for points in parts]
    return "\n".join(line for part in lines for line in part) if all(lines) else ""
