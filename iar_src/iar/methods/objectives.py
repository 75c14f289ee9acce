"""The three reconstruction objectives of Inject, as training rows (method.md, Stage 1).

continuation: a document prefix in the prompt, its suffix is the target.
rewrite:      a skeleton of the document in the prompt, the full text is the target.
instruction:  one reading instruction in the prompt, the full text is the target.
"""

import random
import re
from collections.abc import Iterator, Sequence

from iar.methods.digest import digest_text
from iar.records import Document, Example, QAPair, Skeleton

CONTINUATION_PROMPT = "Continue the text about {title} from where it stops.\n\n{prefix}"
REWRITE_PROMPT = "Write the full text about {title} from these notes.\n\n{skeleton}"
INSTRUCTION_PROMPT = "Read and reproduce the text about {title}."
SENTENCE_END = re.compile(r"[.!?][\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f][\u201d\u300d\u300f\uff09]*\s*")
PREFIX_SHARE = (0.1, 0.5)


def fill(template: str, **values: str) -> str:
    """Replace each `{name}` once; braces inside the values are text, never fields."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def example(objective: str, source_id: str, prompt: str, target: str) -> Example:
    """Build a row whose id comes from its content."""
    return Example(digest_text(f"{objective}\0{prompt}\0{target}")[:16], objective, source_id, prompt, target)


def cut_points(text: str) -> list[int]:
    """Return where a prefix may end, as character offsets: after sentences, else at any space."""
    ends = [match.end() for match in SENTENCE_END.finditer(text) if match.end() < len(text)]
    return ends or [match.end() for match in re.finditer(r"\s+", text) if 0 < match.end() < len(text)]


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
    documents: Sequence[Document],
    skeletons: Sequence[Skeleton],
    weights: tuple[int, int, int],
    seed: int,
) -> Iterator[Example]:
    """Yield the Inject rows: for each document (continuation, rewrite, instruction) times `weights`."""
    skeleton_by_document = {skeleton.document_id: skeleton.text for skeleton in skeletons}
    for document in documents:
        title, text = document.title, document.text.strip()
        generator = random.Random(f"{seed}:{document.id}")
        for cut in continuation_cuts(text, weights[0], generator):
            prompt = fill(CONTINUATION_PROMPT, title=title, prefix=text[:cut].rstrip())
            yield example("continuation", document.id, prompt, text[cut:].lstrip())
        for _ in range(weights[1]):
            prompt = fill(REWRITE_PROMPT, title=title, skeleton=skeleton_by_document[document.id])
            yield example("rewrite", document.id, prompt, text)
        for _ in range(weights[2]):
            yield example("instruction", document.id, fill(INSTRUCTION_PROMPT, title=title), text)


def answer_rows(pairs: Sequence[QAPair]) -> Iterator[Example]:
    """Yield the Align rows: the question alone in the prompt, the answer is the target."""
    for pair in pairs:
        yield Example(pair.id, "qa", pair.chunk_id, pair.question, pair.answer)
