"""The three reconstruction objectives of Inject, as training rows (method.md, Stage 1).

continuation: a document prefix in the prompt, its suffix is the target.
rewrite:      a skeleton of the document in the prompt, the full text is the target.
instruction:  one reading instruction in the prompt, the full text is the target.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import regex

from iar.methods.digest import digest_text
from iar.methods.textnorm import trim
from iar.records import Anchor, Chunk, Document, Example, QAPair, Skeleton

CONTINUATION_PROMPT = "Continue the text about {title} from where it stops.\n\n{prefix}"
REWRITE_PROMPT = "Write the full text about {title} from these notes.\n\n{skeleton}"
INSTRUCTION_PROMPT = "Read and reproduce {part}the text about {title}."
RECONSTRUCTION = ("continuation", "rewrite", "instruction")
WORD_END = re.compile(r"\s+|(?<=[\u3002\uff01\uff1f\uff0c])(?=\S)")
GRAPHEME = regex.compile(r"\X")
PREFIX_SHARE = (0.1, 0.6)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Passage:
    """What one row reconstructs: a whole document, or one part of it. `part` is "" or "part 2 of 3 of ".

    start: offset of `text` in its document; anchors: the key terms in it, with offsets in the document too.
    """

    source_id: str
    title: str
    part: str
    text: str
    skeleton: str
    start: int = 0
    anchors: tuple[Anchor, ...] = ()


def fill(template: str, **values: str) -> str:
    """Replace each `{name}` once; braces inside the values are text, never fields."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def example(objective: str, source_id: str, prompt: str, target: str) -> Example:
    """Build a row whose id comes from its content."""
    return Example(digest_text(f"{objective}\0{prompt}\0{target}")[:16], objective, source_id, prompt, target)


def document_passages(
    documents: Sequence[Document],
    skeletons: Sequence[Skeleton],
    chunks: Sequence[Chunk] = (),
    anchors: Sequence[Anchor] = (),
) -> Iterator[Passage]:
    """Yield each document as one passage."""
    skeleton_by_document = {skeleton.document_id: skeleton.text for skeleton in skeletons}
    document_by_chunk = {chunk.id: chunk.document_id for chunk in chunks}
    anchors_by_document = _grouped(anchors, lambda anchor: document_by_chunk[anchor.chunk_id])
    for document in documents:
        start, end = trim(document.text, 0, len(document.text))
        skeleton, own = skeleton_by_document[document.id], tuple(anchors_by_document.get(document.id, ()))
        yield Passage(document.id, document.title, "", document.text[start:end], skeleton, start, own)


def chunk_passages(
    documents: Sequence[Document], chunks: Sequence[Chunk], anchors: Sequence[Anchor]
) -> Iterator[Passage]:
    """Yield each chunk as a passage of its own, with the chunk's key terms as its skeleton."""
    title_by_document = {document.id: document.title for document in documents}
    anchors_by_chunk = _grouped(anchors, lambda anchor: anchor.chunk_id)
    for document_id, parts in _grouped(chunks, lambda chunk: chunk.document_id).items():
        for number, chunk in enumerate(parts, 1):
            own = tuple(anchors_by_chunk.get(chunk.id, ()))
            skeleton = "Key terms: " + "; ".join(dict.fromkeys(anchor.text for anchor in own))
            part = part_name(number, len(parts))
            yield Passage(chunk.id, title_by_document[document_id], part, chunk.text, skeleton, chunk.start, own)


def part_name(number: int, count: int) -> str:
    """Return "part 2 of 3 of ", or "" where the part is the whole."""
    return f"part {number} of {count} of " if count > 1 else ""


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Return the items by key, keys and items in the order in which they come."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def cut_points(text: str) -> list[int]:
    """Return where a prefix may end, as character offsets: between words, or clauses without spaces, else anywhere.

    Never inside a grapheme: a letter stays with its accents, a flag is whole.
    """
    grapheme_ends = [match.end() for match in GRAPHEME.finditer(text)][:-1]
    word_ends = {match.end() for match in WORD_END.finditer(text)}
    return [end for end in grapheme_ends if end in word_ends] or grapheme_ends


def continuation_cuts(text: str, count: int, generator: random.Random) -> list[int]:
    """Choose `count` cut offsets, distinct while there are enough, within PREFIX_SHARE of the text."""
    points = cut_points(text)
    low, high = (share * len(text) for share in PREFIX_SHARE)
    inside = [point for point in points if low <= point <= high] or points
    if not inside:
        return []
    order = generator.sample(inside, len(inside))
    return [order[index % len(order)] for index in range(count)]


def reconstruction_rows(passages: Iterable[Passage], weights: tuple[int, int, int], seed: int) -> Iterator[Example]:
    """Yield the Inject rows: for each passage (continuation, rewrite, instruction) times `weights`."""
    for passage in passages:
        title, text = passage.title, passage.text
        generator = random.Random(f"{seed}:{passage.source_id}")
        for cut in continuation_cuts(text, weights[0], generator):
            prompt = fill(CONTINUATION_PROMPT, title=title, prefix=text[:cut].rstrip())
            yield example("continuation", passage.source_id, prompt, text[cut:].lstrip())
        for _ in range(weights[1]):
            prompt = fill(REWRITE_PROMPT, title=title, skeleton=passage.skeleton)
            yield example("rewrite", passage.source_id, prompt, text)
        for _ in range(weights[2]):
            prompt = fill(INSTRUCTION_PROMPT, title=title, part=passage.part)
            yield example("instruction", passage.source_id, prompt, text)


def answer_rows(pairs: Sequence[QAPair]) -> Iterator[Example]:
    """Yield the Align rows: the question alone in the prompt, the answer is the target."""
    for pair in pairs:
        yield Example(pair.id, "qa", pair.chunk_id, pair.question, pair.answer)
