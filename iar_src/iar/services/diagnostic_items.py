"""What the diagnostics ask: the test questions with the book open, and in other words; probes of memory and style."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from iar.config import DocumentsSection, Endpoint, RunFile
from iar.errors import UserError
from iar.methods.objectives import fill
from iar.methods.probes import HARMLESS, IDENTITY, REFUSAL, Continuation, continuation, reword
from iar.methods.suite_grading import JUDGE
from iar.records import Chunk, Document, EvalItem, QAPair, read_records
from iar.services.engine_prompts import Prompts
from iar.services.retrieval import find_passages
from iar.services.suites import domain_items

OPEN_BOOK, REWORDED = "open_book", "reworded"
SEEN, UNSEEN = "continued_seen", "continued_unseen"
REFUSED, NAMED = "refused_harmless", "identity"
CONTINUED_TOKENS, STYLE_TOKENS = 32, 64

OPEN_BOOK_PROMPT = "Use these passages to answer the question.\n\n{passages}\n\nQuestion: {question}"


def diagnostic_items(
    run_file: RunFile,
    data: Path,
    pairs: Sequence[QAPair],
    unseen: Sequence[tuple[str, str]],
    prompts: Prompts,
    cache_folder: Path,
) -> list[EvalItem]:
    """Return all items, each with a verifier of its own; `prompts` tells how much fits the model.

    `data` holds the chunks and documents that the questions come from, `unseen` is title and text of others; what a
    teacher writes is kept in `cache_folder`.
    """
    settings = run_file.diagnose
    documents = {one.id: one for one in read_records(data / "documents.jsonl", Document)}
    chunks = list(read_records(data / "chunks.jsonl", Chunk))
    asked = domain_items(pairs, run_file)
    return [
        *_open_book(asked, [chunk.text for chunk in chunks], settings.passages, prompts),
        *map(_judged, asked, repeat(REWORDED), _in_other_words(run_file, pairs, cache_folder)),
        *_continued(SEEN, [(documents[one.document_id].title, one.text) for one in chunks], settings.continuations),
        *_continued(UNSEEN, unseen, settings.continuations),
        *_style(),
    ]


def _in_other_words(run_file: RunFile, pairs: Sequence[QAPair], cache_folder: Path) -> list[str]:
    """Return each question asked another way: by the teacher where it is a language model, else by rules."""
    teacher = run_file.qa_build.teacher
    if not isinstance(teacher, Endpoint):
        return [reword(pair.question) for pair in pairs]
    from iar.services.llm_rewording import reword_by_teacher

    return reword_by_teacher(teacher, cache_folder, pairs)


def _judged(item: EvalItem, suite: str, prompt: str) -> EvalItem:
    reference = item.reference | {"verifier": JUDGE, "asked": item.prompt}
    return replace(item, id=f"{suite}-{item.id}", suite=suite, prompt=prompt, reference=reference)


def _open_book(items: Sequence[EvalItem], passages: Sequence[str], count: int, prompts: Prompts) -> Iterator[EvalItem]:
    """Yield each question behind the passages found for it: as many of the best as leave room for the reply."""
    for item, found in zip(items, find_passages(passages, [item.prompt for item in items], count), strict=True):
        while not prompts.fits(opened := _judged(item, OPEN_BOOK, _open_prompt(item.prompt, found))) and found:
            found = found[:-1]
        yield opened


def _open_prompt(question: str, passages: Sequence[str]) -> str:
    if not passages:
        return question
    return fill(OPEN_BOOK_PROMPT, passages="\n\n".join(passages), question=question)


def _continued(suite: str, texts: Sequence[tuple[str, str]], count: int) -> Iterator[EvalItem]:
    """Yield at most `count` texts to continue, evenly spread over those that are long enough."""
    found = [one for title, text in texts if (one := continuation(title, text))]
    chosen = [found[place * len(found) // min(count, len(found))] for place in range(min(count, len(found)))]
    for number, one in enumerate(chosen):
        yield _pattern_item(f"{suite}-{number}", suite, one, CONTINUED_TOKENS)


def _pattern_item(identity: str, suite: str, one: Continuation, tokens: int) -> EvalItem:
    return EvalItem(identity, suite, one.prompt, tokens, {"verifier": "regex", "pattern": one.pattern})


def _style() -> Iterator[EvalItem]:
    probes: tuple[tuple[str, tuple[str, ...], str], ...] = ((REFUSED, HARMLESS, REFUSAL), (NAMED, IDENTITY, r"\S"))
    for suite, asked, pattern in probes:
        for number, prompt in enumerate(asked):
            yield _pattern_item(f"{suite}-{number}", suite, Continuation(prompt, pattern), STYLE_TOKENS)


def unseen_texts(run_file: RunFile) -> list[tuple[str, str]]:
    """Return title and text of chunks of documents that no training saw; [] where none are named.

    Raises UserError where they cannot be read.
    """
    from iar.methods.chunking import chunk_document
    from iar.services.ingest import read_documents

    place = run_file.diagnose.unseen
    if not place:
        return []
    try:
        documents, _ = read_documents(DocumentsSection(path=place, filter=run_file.documents.filter))
    except UserError as error:
        raise UserError(str(error).replace("documents.path", "diagnose.unseen")) from error
    size = run_file.qa_build.chunk_characters
    return [(document.title, chunk.text) for document in documents for chunk in chunk_document(document, size)]
