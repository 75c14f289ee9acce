"""Definition questions: what the document's subject is, and what carries a name the chunk gives it."""

import re
from dataclasses import dataclass

from iar.methods.chunking import body_start
from iar.methods.cloze import dangling_opening, opening_word, sentences_of
from iar.methods.lexicon import COPULAS, DEFINING_VERBS
from iar.methods.textnorm import count_words
from iar.records import Anchor, Chunk, Document

MAX_ANSWER_WORDS = 24
_CLOSING_QUOTES = ('"', "”")
_SPACE = re.compile(r"\s*")
_COPULA = re.compile(rf"\s*({'|'.join(COPULAS)})\s+")
_VERB_BEFORE = re.compile(rf"\s({'|'.join(DEFINING_VERBS)})\s((?:the |a |an )?)[\"“]?$")


@dataclass(frozen=True)
class Definition:
    """A question, the words that answer it and the statement that holds them.

    `key` stands literally in the chunk from `start` on; `statement` is the sentence a reply should be.
    """

    question: str
    key: str
    statement: str
    start: int
    term: str


def define_title(document: Document, chunk: Chunk) -> Definition | None:
    """Return what the first sentence says the subject is ("X is a ..."), where this chunk opens with it."""
    sentences = sentences_of(chunk)
    opening = re.match(re.escape(document.title), chunk.text, re.IGNORECASE)
    copula = _COPULA.match(chunk.text, opening.end()) if opening and _opens_document(document, chunk) else None
    if not copula or not sentences or sentences[0][0] != 0:
        return None
    answer = _first_clauses(chunk.text[copula.end() : sentences[0][1]].rstrip(".!?。 "))
    if not 3 <= count_words(answer) <= MAX_ANSWER_WORDS:
        return None
    asks = "Who or what" if _may_be_person(chunk, sentences) else "What"
    statement = f"{chunk.text[: copula.end()]}{answer}."
    return Definition(f"{asks} {copula.group(1)} {document.title}?", answer, statement, copula.end(), document.title)


def _opens_document(document: Document, chunk: Chunk) -> bool:
    """Tell whether nothing but white space stands between the title line and the chunk."""
    space = _SPACE.match(document.text, body_start(document), chunk.start)
    return space is not None and space.end() == chunk.start


def define_term(document: Document, chunk: Chunk, anchor: Anchor) -> Definition | None:
    """Return what is called by the anchor's name: the words before "is called" and its like."""
    position = anchor.start - chunk.start
    sentence = next(((s, e) for s, e in sentences_of(chunk) if s <= position < e), None)
    verb = _VERB_BEFORE.search(chunk.text, sentence[0], position) if sentence else None
    if not sentence or not verb:
        return None
    answer = chunk.text[sentence[0] : verb.start()]
    named_by_clause = "," in answer or re.search(r"\b(?:which|that|who)$", answer)
    if named_by_clause or dangling_opening(answer) or not 3 <= count_words(answer) <= MAX_ANSWER_WORDS:
        return None
    question = f'What {verb.group(1)} "{verb.group(2)}{anchor.text}" in the account of {document.title}?'
    named = chunk.text[sentence[0] : anchor.end - chunk.start]
    closing = chunk.text[anchor.end - chunk.start :][:1]
    statement = f"{named}{closing if closing in _CLOSING_QUOTES else ''}."
    return Definition(question, answer, statement, sentence[0], anchor.text)


def _first_clauses(text: str) -> str:
    """Return the text up to the last comma that keeps it within the answer length."""
    while count_words(text) > MAX_ANSWER_WORDS and "," in text:
        text = text.rpartition(",")[0]
    return text


def _may_be_person(chunk: Chunk, sentences: list[tuple[int, int]]) -> bool:
    """Tell from the pronouns that open the chunk's sentences; a ship is a "she" too."""
    return any(opening_word(chunk.text[start:end]) in ("he", "she", "his", "her") for start, end in sentences)
