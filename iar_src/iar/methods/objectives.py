"""The three reconstruction objectives of Inject, as training rows (method.md, Stage 1).

continuation: a document prefix in the prompt, its suffix is the target.
rewrite:      a skeleton, outline or summary of the document in the prompt, the full text is the target.
instruction:  one reading instruction in the prompt, the full text is the target.

A teacher's retellings are rows beside them: the prompt names document and register, or document and objects.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import regex

from iar.methods.digest import digest_text
from iar.methods.retelling import REGISTERS
from iar.methods.textnorm import trim
from iar.records import Anchor, Chunk, Document, Example, QAPair, Retelling, RewriteInput

CONTINUATION_PROMPT = "Continue the text about {title} from where it stops.\n\n{prefix}"
REWRITE_PROMPT = "Write the full text about {title} from these notes.\n\n{notes}"
INSTRUCTION_PROMPT = "Read and reproduce {part}the text about {title}."
PARAPHRASE_PROMPT = "Tell {part}the text about {title} again {register}."
RELATIONS_PROMPT = "In the text about {title}, how are {objects} related?"
RECONSTRUCTION = ("continuation", "rewrite", "instruction")
WORD_END = re.compile(r"\s+|(?<=[\u3002\uff01\uff1f\uff0c])(?=\S)")
GRAPHEME = regex.compile(r"\X")
PREFIX_SHARE = (0.1, 0.6)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Passage:
    """What one row reconstructs: a whole document, or one part of it. `part` is "" or "part 2 of 3 of ".

    notes: what rewrite rows show, in turn; start: offset of `text` in its document; anchors: the key terms in it, with
    offsets in the document too; source: the document's path.
    """

    source_id: str
    title: str
    part: str
    text: str
    notes: tuple[str, ...]
    start: int = 0
    anchors: tuple[Anchor, ...] = ()
    source: str = ""


def fill(template: str, **values: str) -> str:
    """Replace each `{name}` once; braces inside the values are text, never fields."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def example(objective: str, source_id: str, prompt: str, target: str) -> Example:
    """Build a row whose id comes from its content."""
    return Example(digest_text(f"{objective}\0{prompt}\0{target}")[:16], objective, source_id, prompt, target)


def document_passages(
    documents: Sequence[Document],
    rewrite_inputs: Sequence[RewriteInput],
    chunks: Sequence[Chunk] = (),
    anchors: Sequence[Anchor] = (),
) -> Iterator[Passage]:
    """Yield each document as one passage."""
    inputs_by_document = _grouped(rewrite_inputs, lambda one: one.document_id)
    document_by_chunk = {chunk.id: chunk.document_id for chunk in chunks}
    anchors_by_document = _grouped(anchors, lambda anchor: document_by_chunk[anchor.chunk_id])
    for document in documents:
        start, end = trim(document.text, 0, len(document.text))
        notes = tuple(one.text for one in inputs_by_document[document.id])
        own, text = tuple(anchors_by_document.get(document.id, ())), document.text[start:end]
        yield Passage(document.id, document.title, "", text, notes, start, own, document.source)


def chunk_passages(
    documents: Sequence[Document], chunks: Sequence[Chunk], anchors: Sequence[Anchor]
) -> Iterator[Passage]:
    """Yield each chunk as a passage of its own, with the chunk's key terms as its notes."""
    document_by_id = {document.id: document for document in documents}
    anchors_by_chunk = _grouped(anchors, lambda anchor: anchor.chunk_id)
    for document_id, parts in _grouped(chunks, lambda chunk: chunk.document_id).items():
        for number, chunk in enumerate(parts, 1):
            own = tuple(anchors_by_chunk.get(chunk.id, ()))
            terms = "Key terms: " + "; ".join(dict.fromkeys(anchor.text for anchor in own))
            part, document = part_name(number, len(parts)), document_by_id[document_id]
            yield Passage(chunk.id, document.title, part, chunk.text, (terms,), chunk.start, own, document.source)


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


def reconstruction_rows(
    passages: Iterable[Passage], weights: tuple[int, int, int], seed: int, tag: str = ""
) -> Iterator[Example]:
    """Yield the Inject rows: for each passage (continuation, rewrite, instruction) times `weights`.

    Rewrite rows take the passage's notes in turn, the first one drawn. `tag` stands in front of the document: in front
    of a prefix, else as the end of what is masked; {source} and {kind} in it are filled.
    """
    for passage in passages:
        title, text = passage.title, passage.text
        head = fill(tag, source=passage.source, kind="document")
        generator = random.Random(f"{seed}:{passage.source_id}")
        for cut in continuation_cuts(text, weights[0], generator):
            prefix = "\n".join(filter(None, (head, text[:cut].rstrip())))
            prompt = fill(CONTINUATION_PROMPT, title=title, prefix=prefix)
            yield example("continuation", passage.source_id, prompt, text[cut:].lstrip())
        first = generator.randrange(len(passage.notes)) if passage.notes else 0
        for number in range(first, first + weights[1]):
            prompt = fill(REWRITE_PROMPT, title=title, notes=passage.notes[number % len(passage.notes)])
            yield example("rewrite", passage.source_id, _before(head, prompt), text)
        for _ in range(weights[2]):
            prompt = fill(INSTRUCTION_PROMPT, title=title, part=passage.part)
            yield example("instruction", passage.source_id, _before(head, prompt), text)


def retelling_rows(documents: Sequence[Document], retellings: Sequence[Retelling], tag: str = "") -> Iterator[Example]:
    """Yield one row a retelling, of objective "paraphrase" or "relations"; `tag` as in `reconstruction_rows`."""
    document_by_id = {document.id: document for document in documents}
    places: dict[str, list[tuple[int, int]]] = {}
    for one in retellings:
        if one.kind == "paraphrase" and (one.start, one.end) not in (own := places.setdefault(one.document_id, [])):
            own.append((one.start, one.end))
    for one in retellings:
        document = document_by_id[one.document_id]
        if one.kind == "paraphrase":
            own = places[one.document_id]
            part = part_name(own.index((one.start, one.end)) + 1, len(own))
            prompt = fill(PARAPHRASE_PROMPT, part=part, title=document.title, register=REGISTERS[one.about].phrase)
        else:
            prompt = fill(RELATIONS_PROMPT, title=document.title, objects=one.about)
        head = fill(tag, source=document.source, kind=one.kind)
        yield example(one.kind, one.id, _before(head, prompt), one.text)


def _before(head: str, prompt: str) -> str:
    """Return the prompt with the tag as its end: what follows is the document itself."""
    return f"{prompt}\n\n{head}" if head else prompt


def answer_rows(pairs: Sequence[QAPair]) -> Iterator[Example]:
    """Yield the Align rows: the question alone in the prompt, the answer is the target."""
    for pair in pairs:
        yield Example(pair.id, "qa", pair.chunk_id, pair.question, pair.answer)
