"""Rewrite inputs by a language model: a document's skeleton, outline or summary, made part by part."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from iar.methods.offline_teacher import TEACHER as OFFLINE
from iar.methods.prompting import fence
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.records import Anchor, Chunk, Document, RewriteInput
from iar.services.llm import ChatClient
from iar.services.llm_teacher_replies import Points, ask_forms

PART_CHARACTERS = 12_000  # small enough for any server's context
MOST_SHARE = 0.5  # a longer one would hand the row the text that it must recall


def write_rewrite_inputs(
    client: ChatClient,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    anchors: Sequence[Anchor],
    kinds: Sequence[str],
    teacher: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RewriteInput]:
    """Return one input of each kind a document, in order.

    Where a part stays unread or the text is too long, the rule-based one takes its place, and the record's `teacher`
    says so.
    """
    chunks_of: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        chunks_of[chunk.document_id].append(chunk)
    anchors_of: dict[str, list[Anchor]] = defaultdict(list)
    for anchor in anchors:
        anchors_of[anchor.chunk_id].append(anchor)
    parts = [(document, text) for document in documents for _, text in parts_of(document, chunks_of[document.id])]
    rows = [{"title": fence(document.title, "title"), "passage": fence(text, "passage")} for document, text in parts]

    made: dict[tuple[str, str], RewriteInput] = {}
    for number, kind in enumerate(kinds):
        points_of: dict[str, list[list[str]]] = defaultdict(list)
        report = _part_of(on_progress, number, len(kinds))
        for (document, _), asked in zip(parts, ask_forms(client, kind, Points, rows, report), strict=True):
            points_of[document.id].append(list(asked.value.points) if asked.value else [])
        for document in documents:
            text = _joined(points_of[document.id])
            if text and len(text) <= MOST_SHARE * len(document.text):
                made[document.id, kind] = RewriteInput(document.id, kind, text, teacher)
            else:
                own = [anchor for chunk in chunks_of[document.id] for anchor in anchors_of[chunk.id]]
                made[document.id, kind] = make_rewrite_input(document, own, kind, OFFLINE)
    return [made[document.id, kind] for document in documents for kind in kinds]


def parts_of(document: Document, chunks: Sequence[Chunk]) -> Iterator[tuple[int, str]]:
    """Yield the document's text over its chunks with its offset, cut between chunks where a part would be too long."""
    start = chunks[0].start if chunks else 0
    for chunk, following in zip_longest(chunks, chunks[1:]):
        if following is None or following.end - start > PART_CHARACTERS:
            yield start, document.text[start : chunk.end]
            start = following.start if following else 0


def _part_of(
    on_progress: Callable[[int, int], None] | None, number: int, count: int
) -> Callable[[int, int], None] | None:
    """Report the calls of one kind as a part of those of all kinds."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(number * total + done, count * total)


def _joined(parts: Sequence[Sequence[str]]) -> str:
    """Return the points of all parts, one a line; "" where a part has none."""
    lines = [[" ".join(point.split()) for point in points if point.strip()] for points in parts]
    return "\n".join(line for part in lines for line in part) if all(lines) else ""
