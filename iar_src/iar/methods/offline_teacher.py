"""The rule-based teacher: the six steps of the QA build without a language model.

For each chunk: anchors -> applicable question types -> questions -> self-containedness certifier
(which doesn't see the chunk) -> groundedness certifier (which does) -> answers. It asks what rules can
ask: clozes of facts and relations, and definitions; it says of the other types that they don't apply.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

from iar.methods.aliases import aliases_of
from iar.methods.anchors import Corpus, find_anchors
from iar.methods.cloze import GAP, Cloze, ClozeMaker, dangling_opening, gives_away, sentences_of
from iar.methods.definitions import define_term, define_title
from iar.methods.digest import digest_json
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.methods.shared_anchors import Crossing
from iar.methods.teaching import QUESTION_TYPES, Crossed, Retold, TeacherOutput, funnel_step
from iar.methods.textnorm import count_words, normalise, sentence_spans
from iar.records import Anchor, Chunk, Document, QAPair, Reject

TEACHER = "offline"
# The steps of verification with their versions, which change when a verdict may change.
CERTIFIERS = {"self_contained": "1", "grounded": "1"}
MIN_CONTEXT_WORDS = 5
MAX_QUESTION_WORDS = 75
_SENTENCE_ENDS = (".", "!", "?", "”", '"', "。", "！", "？")
# What a question must not lean on; the reader of the question has no text before them.
_TEXT_REFERENCE = re.compile(r"\b(?:according to the text|the above|this (?:method|text|passage|document))\b", re.I)


@dataclass(frozen=True)
class _Draft:
    """A question on its way through the certifiers; `key` are the words it asks for, `cloze` is "" for a definition."""

    chunk: Chunk
    question_type: str
    question: str
    cloze: str
    key: str
    answer: str
    kind: str
    anchor: str


class OfflineTeacher:
    """Rule-based teacher; the same input always gives the same output.

    It asks no questions over two documents and writes no further texts: that takes a language model.
    """

    name = TEACHER

    def __init__(self, rewrite_inputs: Sequence[str] = ("skeleton",), corpus: Corpus | None = None) -> None:
        """Take the facts of the whole `corpus` of which `build` is shown a part; None = it is shown all of it."""
        self._rewrite_inputs = rewrite_inputs
        self._corpus = corpus

    def build(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors_per_chunk: int,
        seed: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> TeacherOutput:
        """Return questions with answers for all chunks, in their order. `seed` is not used: no rule draws."""
        corpus = self._corpus or Corpus.of(documents)
        by_id = {document.id: document for document in documents}
        makers = {document.id: ClozeMaker(document) for document in documents}
        anchors: list[Anchor] = []
        anchors_of: dict[str, list[Anchor]] = {document.id: [] for document in documents}
        rejects: list[Reject] = []
        drafts: list[_Draft] = []
        for done, chunk in enumerate(chunks, 1):
            document = by_id[chunk.document_id]
            found = find_anchors(chunk, document, anchors_per_chunk, corpus, rejects)
            anchors += found
            anchors_of[document.id] += found
            drafts += _draft_questions(document, chunk, found, makers[document.id], rejects)
            if on_progress:
                on_progress(done, len(chunks))
        titles = {document.id: document.title for document in documents}
        verified = [draft for draft in drafts if _verify(draft, titles[draft.chunk.document_id], rejects)]
        pairs = [_answer(draft) for draft in verified]
        applicable = len(chunks) * len(QUESTION_TYPES) - sum(reject.step == "applicable" for reject in rejects)
        funnel = [
            funnel_step("anchors", "anchor", len(anchors), rejects),
            funnel_step("applicable", "chunk and question type", applicable, rejects),
            funnel_step("questions", "question", len(drafts), rejects),
            funnel_step("verified", "question", len(verified), rejects, len(drafts)),
            funnel_step("answered", "question", len(pairs), rejects, len(verified)),
        ]
        rewrite_inputs = [
            make_rewrite_input(document, anchors_of[document.id], kind, TEACHER)
            for document in documents
            for kind in self._rewrite_inputs
        ]
        return TeacherOutput(anchors, pairs, rewrite_inputs, rejects, funnel)

    def retell(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors: Sequence[Anchor],
        seed: int,
        count_tokens: Callable[[str], int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Retold:
        """Return nothing: no rule tells a text anew."""
        return Retold()

    def ask_across(
        self,
        crossings: Sequence[Crossing],
        seed: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Crossed:
        """Return nothing: no rule joins two texts."""
        return Crossed()


def _draft_questions(
    document: Document, chunk: Chunk, anchors: Sequence[Anchor], maker: ClozeMaker, rejects: list[Reject]
) -> list[_Draft]:
    """Return the chunk's questions, one an anchor and one a definition, and record what doesn't apply."""
    drafts = []
    for anchor in anchors:
        cloze = maker.make(chunk, anchor)
        if cloze is None:
            rejects.append(Reject("questions", chunk.id, "anchor stands in no sentence", anchor.text))
        else:
            drafts.append(_cloze_draft(document, chunk, anchor, cloze))
    definitions = [define_title(document, chunk), *(define_term(document, chunk, anchor) for anchor in anchors)]
    drafts += [
        _Draft(chunk, "mechanism_explanation", found.question, "", found.key, found.statement, "definition", found.term)
        for found in definitions
        if found
    ]
    supported = {draft.question_type for draft in drafts}
    rejects += [
        Reject("applicable", chunk.id, f"{question_type} not applicable", "")
        for question_type in QUESTION_TYPES
        if question_type not in supported
    ]
    return drafts


def _cloze_draft(document: Document, chunk: Chunk, anchor: Anchor, cloze: Cloze) -> _Draft:
    """Put the cloze into a question that names the document's subject."""
    kind = "comparison_and_relation" if anchor.kind == "title" else "fact_extraction"
    sentence = re.sub(r"\s+", " ", cloze.text)
    if len(regex.findall(r"\p{Han}", sentence)) > len(sentence) / 3 and not regex.search(r"\p{Hiragana}", sentence):
        question = f"在关于“{document.title}”的记述中，哪些词应填入这句话的空格：“{sentence}”？"
    else:
        part = "sentence" if cloze.sentences == 1 else "passage"
        quoted = re.sub(r"[\"“”„]", "'", sentence)
        question = f'In the account of {document.title}, how is the {part} completed: "{quoted}"?'
    answer = answer_prose(sentence, chunk, anchor)
    return _Draft(chunk, kind, question, sentence, anchor.text, answer, anchor.kind, anchor.text)


def _verify(draft: _Draft, title: str, rejects: list[Reject]) -> bool:
    """Run both certifiers; record the reason of the first that refuses."""
    reason = certify_self_contained(draft.question, title) or certify_grounded(draft.key, draft.cloze, draft.chunk)
    if reason:
        rejects.append(Reject("verified", draft.chunk.id, reason, draft.question))
    return not reason


def certify_self_contained(question: str, title: str) -> str:
    """Return "" or why the question can't be understood alone. Sees the question and the title only."""
    if title not in question:
        return "does not name its subject"
    if not question.endswith(("?", "？")):
        return "no question mark"
    if _TEXT_REFERENCE.search(question):
        return "refers to the text"
    if count_words(question) > MAX_QUESTION_WORDS:
        return "too long"
    _, _, statement = question.partition(': "')
    if GAP in question and dangling_opening(statement):
        return "dangling reference"
    gapped = re.split(r'[:：]\s?["“]', question, maxsplit=1)[-1]
    if GAP in question and count_words(gapped.replace(GAP, " ")) < MIN_CONTEXT_WORDS:
        return "too little context"
    return ""


def certify_grounded(answer: str, cloze: str, chunk: Chunk) -> str:
    """Return "" or why the answer doesn't rest on the chunk alone. Sees the chunk."""
    if answer not in chunk.text:
        return "answer does not stand in the chunk"
    if cloze and gives_away(cloze, answer):
        return "answer stands beside the gap"
    return ""


def answer_prose(cloze: str, chunk: Chunk, anchor: Anchor) -> str:
    """Return the sentence that the words complete and the one that follows it in the chunk.

    Prose, not one line: a model trained on single sentences answers whatever it is asked with a single sentence.
    """
    filled = filled_sentence(cloze, anchor.text)
    after = (chunk.text[start:end] for start, end in sentences_of(chunk) if start > anchor.start - chunk.start)
    following = re.sub(r"\s+", " ", next(after, "")).strip()
    if not filled.endswith(_SENTENCE_ENDS):
        return filled
    return filled + ("" if filled[-1] in "。！？" else " ") * bool(following) + following


def filled_sentence(cloze: str, words: str) -> str:
    """Return the one sentence of the cloze that has the gap, with the words in it and no marks of clipping.

    A whole sentence, not the bare words: a model that has read the document can recite what it cannot look up.
    """
    gap = cloze.index(GAP)
    start, end = next(span for span in sentence_spans(cloze, 0, len(cloze)) if span[0] <= gap < span[1])
    return cloze[start:end].replace(GAP, words).strip("… ")


def _answer(draft: _Draft) -> QAPair:
    """Return the draft as a pair with its equivalent answers; its split is set later."""
    return QAPair(
        id="qa-" + digest_json([draft.chunk.id, normalise(draft.question), draft.key])[:12],
        document_id=draft.chunk.document_id,
        chunk_id=draft.chunk.id,
        split="",
        question_type=draft.question_type,
        question=draft.question,
        answer=re.sub(r"\s+", " ", draft.answer),
        key=draft.key,
        aliases=aliases_of(draft.kind, draft.key),
        anchor=draft.anchor,
        teacher=TEACHER,
    )
