"""Retellings by a language model: paraphrases in several registers, and texts on how a document's objects relate.

Each is written from a passage of its document and kept only where a certifier finds every statement of it there.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

from iar.methods.chunking import chunk_document
from iar.methods.digest import digest_json
from iar.methods.prompting import fence
from iar.methods.retelling import MOST_TOKENS, REGISTERS, choose_groups, in_words
from iar.methods.textnorm import normalise
from iar.records import Anchor, Chunk, Document, Reject, Retelling
from iar.services.llm import ChatClient
from iar.services.llm_ask import Asked
from iar.services.llm_rewrite_inputs import parts_of
from iar.services.llm_teacher_replies import Certificate, Form, Paraphrase, Relations, ask_forms, unread

STEP = "augmented"
OnProgress = Callable[[int, int], None]


def paraphrase(
    client: ChatClient,
    documents: Sequence[Document],
    count_tokens: Callable[[str], int],
    teacher: str,
    rejects: dict[str, list[Reject]],
    on_progress: OnProgress | None = None,
) -> list[Retelling]:
    """Return each passage of at most 300 tokens in each register; one of more tokens, or unfaithful, is dropped.

    `rejects`: by document id."""
    passages = [(one, chunk) for one in documents for chunk in chunk_document(one, MOST_TOKENS, count_tokens)]
    tasks = [(document, chunk, register) for document, chunk in passages for register in REGISTERS]
    rows = [
        _passage(document, chunk.text) | {"register": REGISTERS[register].wanted} for document, chunk, register in tasks
    ]
    drafts: list[Retelling] = []
    for (document, chunk, register), asked in zip(
        tasks, ask_forms(client, "paraphrase", Paraphrase, rows, on_progress), strict=True
    ):
        made = _retelling(document, chunk.start, chunk.end, "paraphrase", register, teacher, asked)
        if count_tokens(made.text) > MOST_TOKENS:
            rejects[made.document_id].append(Reject(STEP, made.id, f"longer than {MOST_TOKENS} tokens", made.text))
        else:
            drafts += _sound(made, chunk.text, asked, rejects)
    return _faithful(client, documents, drafts, rejects, on_progress)


def relate(
    client: ChatClient,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    anchors: Sequence[Anchor],
    most: int,
    teacher: str,
    seed: int,
    rejects: dict[str, list[Reject]],
    on_progress: OnProgress | None = None,
) -> list[Retelling]:
    """Return at most `most` texts a document, each on a pair or triple of its anchors that stand in one part of it."""
    chunks_of: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        chunks_of[chunk.document_id].append(chunk)
    anchors_of: dict[str, list[Anchor]] = defaultdict(list)
    for anchor in anchors:
        anchors_of[anchor.chunk_id].append(anchor)
    tasks: list[tuple[Document, int, str, tuple[str, ...]]] = []
    for document in documents:
        parts = list(parts_of(document, chunks_of[document.id]))
        for number, (start, text) in enumerate(parts):
            own = [anchor for chunk in chunks_of[document.id] for anchor in anchors_of[chunk.id]]
            names = [anchor.text for anchor in own if start <= anchor.start < start + len(text)]
            share = (most + number) // len(parts)  # the shares of all parts add up to `most`
            generator = random.Random(f"{seed}:{document.id}:{number}")
            tasks += [(document, start, text, group) for group in choose_groups(names, share, generator)]
    rows = [
        _passage(document, text) | {"objects": "\n".join(fence(name, "object") for name in group)}
        for document, _, text, group in tasks
    ]
    drafts: list[Retelling] = []
    for (document, start, text, group), asked in zip(
        tasks, ask_forms(client, "relations", Relations, rows, on_progress), strict=True
    ):
        made = _retelling(document, start, start + len(text), "relations", in_words(group), teacher, asked)
        if asked.value is not None and not asked.value.related:
            rejects[made.document_id].append(Reject(STEP, made.id, "not related in the passage", made.about))
        else:
            drafts += _sound(made, text, asked, rejects)
    return _faithful(client, documents, drafts, rejects, on_progress)


def _retelling(
    document: Document, start: int, end: int, kind: str, about: str, teacher: str, asked: Asked[Form]
) -> Retelling:
    text = getattr(asked.value, "text", "").strip()
    name = f"{kind}-" + digest_json([document.id, start, end, about])[:12]
    return Retelling(name, document.id, start, end, kind, about, text, teacher)


def _sound(made: Retelling, source: str, asked: Asked[Form], rejects: dict[str, list[Reject]]) -> list[Retelling]:
    """Return the retelling in a list, or nothing where it was not read, is empty or a copy."""
    if asked.value is None:
        rejects[made.document_id].append(unread(STEP, made.id, asked))
    elif not normalise(made.text):
        rejects[made.document_id].append(Reject(STEP, made.id, "empty", made.about))
    elif normalise(made.text) == normalise(source):
        rejects[made.document_id].append(Reject(STEP, made.id, "a copy of its source", made.text))
    else:
        return [made]
    return []


def _faithful(
    client: ChatClient,
    documents: Sequence[Document],
    drafts: Sequence[Retelling],
    rejects: dict[str, list[Reject]],
    on_progress: OnProgress | None,
) -> list[Retelling]:
    """Return what the certifier passes, which sees the source."""
    text_of = {document.id: document.text for document in documents}
    rows = [
        {
            "passage": fence(text_of[draft.document_id][draft.start : draft.end], "passage"),
            "retelling": fence(draft.text, "text"),
        }
        for draft in drafts
    ]
    kept: list[Retelling] = []
    for draft, asked in zip(drafts, ask_forms(client, "faithful", Certificate, rows, on_progress), strict=True):
        if asked.value is None:
            rejects[draft.document_id].append(unread(STEP, draft.id, asked))
        elif not asked.value.passed:
            rejects[draft.document_id].append(
                Reject(STEP, draft.id, "says what its source does not", f"{draft.text} [{asked.value.reason}]")
            )
        else:
            kept.append(draft)
    return kept


def _passage(document: Document, text: str) -> dict[str, str]:
    return {"title": fence(document.title, "title"), "passage": fence(text, "passage")}
