"""A sentence with a gap where the anchor stood, made understandable away from its chunk."""

import re
from dataclasses import dataclass

from iar.methods.lexicon import DEMONSTRATIVES, POSSESSIVE_PRONOUNS, SUBJECT_PRONOUNS
from iar.methods.textnorm import after_bullet, count_words, is_heading, normalise, sentence_spans
from iar.records import Anchor, Chunk, Document

GAP = "____"
MAX_SENTENCE_WORDS = 30
MAX_PASSAGE_WORDS = 48
_GENDERS = ({"he", "his", "him"}, {"she", "her"}, {"it", "its"}, {"they", "their"})
_POINTS_BACK = re.compile(r"\b(?:this|these|the same)\b", re.IGNORECASE)
_THING = re.compile(r"\bit\b", re.IGNORECASE)
_NEW_CLAUSE = re.compile(r"[,;:]|\b(?:and|but|or|that|which|who|because|when|while|if|so)\b")
_PERSONAL = re.compile(r"\b(?:he|she|his|her|him)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Cloze:
    """`text` holds one GAP; `sentences` is 2 where the sentence before had to be shown too."""

    text: str
    sentences: int


class ClozeMaker:
    """Makes the clozes of one document; knows its title and which pronoun stands for it."""

    def __init__(self, document: Document) -> None:
        self._title = document.title
        core = re.sub(r"^(?:the|a|an)\s", "", document.title, flags=re.IGNORECASE)
        self._names = tuple({document.title, core, f"the {core}", core.split()[-1], f"the {core.split()[-1]}"})
        self._pronouns = self._title_pronouns(document.text)

    def _title_pronouns(self, text: str) -> set[str]:
        """Return the pronouns for the title: those of the first sentence that opens with one."""
        for start, end in sentence_spans(text, 0, len(text)):
            word = opening_word(text[start:end])
            for gender in _GENDERS:
                if word in gender:
                    return gender
        return set()

    def make(self, chunk: Chunk, anchor: Anchor) -> Cloze | None:
        """Return the anchor's sentence with a gap, or None where it stands in no sentence (a heading, a table row)."""
        sentences = sentences_of(chunk)
        position = anchor.start - chunk.start
        index = next((i for i, (start, end) in enumerate(sentences) if start <= position < end), None)
        if index is None:
            return None
        start, end = sentences[index]
        before, after = chunk.text[start:position], chunk.text[position + len(anchor.text) : end]
        clipped = clip(before, after)
        if clipped.startswith("…"):
            return Cloze(clipped, 1)
        return self._resolve(chunk.text, sentences, index, clipped)

    def _resolve(self, text: str, sentences: list[tuple[int, int]], index: int, sentence: str) -> Cloze:
        """Replace an opening pronoun that stands for the title; else show the sentence before."""
        word = opening_word(sentence)
        about_title = index == 0 or self._about_title(text, sentences, index - 1)
        if word in self._pronouns and about_title:
            name = self._title + ("’" if self._title.endswith("s") else "’s") * (word in POSSESSIVE_PRONOUNS)
            return Cloze(name.replace("’", "'") + sentence[len(word) :], 1)
        if not self._needs_context(sentence, about_title) or index == 0:
            return Cloze(sentence, 1)
        before = self._resolve(text, sentences, index - 1, text[slice(*sentences[index - 1])]).text
        # Too long to read: the certifier decides whether the sentence can stand without it.
        if count_words(before + sentence) > MAX_PASSAGE_WORDS:
            return Cloze(sentence, 1)
        return Cloze(f"{before} {sentence}", 2)

    def _needs_context(self, sentence: str, about_title: bool) -> bool:
        if dangling_opening(sentence) or _POINTS_BACK.search(sentence):
            return True
        if about_title or self._opens_with_title(sentence):
            return False
        personal, thing = _PERSONAL.search(sentence), _THING.search(sentence)
        # A capital, or a clause, before the pronoun likely holds what it stands for.
        return bool(
            (personal and not re.search(r"[^\W\d_a-z]", sentence[1 : personal.start()]))
            or (thing and not _NEW_CLAUSE.search(sentence[: thing.start()]))
        )

    def _opens_with_title(self, sentence: str) -> bool:
        return any(re.match(rf"{re.escape(name)}\b", sentence, re.IGNORECASE) for name in self._names)

    def _about_title(self, text: str, sentences: list[tuple[int, int]], index: int) -> bool:
        """Tell whether the sentence's subject is the title, followed back through pronouns."""
        sentence = text[slice(*sentences[index])]
        if self._opens_with_title(sentence):
            return True
        pronouns = self._pronouns & SUBJECT_PRONOUNS
        if "he" in pronouns or "she" in pronouns:
            # A person stays the subject after an opening phrase too: "In 1852 Lind founded", "In May she left".
            opening = re.match(r"(?:\S+\s+){0,4}\S+", sentence)
            words = set(re.findall(r"\w+", opening.group())) if opening else set()
            if self._title.split()[-1] in words:
                return True
            if words & pronouns:
                return index == 0 or self._about_title(text, sentences, index - 1)
        if opening_word(sentence) in pronouns:
            return index == 0 or self._about_title(text, sentences, index - 1)
        return False


def sentences_of(chunk: Chunk) -> list[tuple[int, int]]:
    """Return the spans, in the chunk, of its sentences without list markers; headings and table rows left out."""
    spans = [(after_bullet(chunk.text, *span), span[1]) for span in sentence_spans(chunk.text, 0, len(chunk.text))]
    return [(s, e) for s, e in spans if not is_heading(chunk.text[s:e]) and " | " not in chunk.text[s:e]]


def opening_word(sentence: str) -> str:
    """Return the first word of the sentence in lower case, "" where it opens with no letter."""
    match = re.match(r"[^\W\d_]+", sentence)
    return match.group().casefold() if match else ""


def dangling_opening(sentence: str) -> bool:
    """Tell whether the sentence opens by pointing back to another one."""
    word = opening_word(sentence)
    if re.match(r"(?:there (?:is|are|was|were)|both \w+s|it is \w+ (?:that|to)|neither)\b", sentence, re.IGNORECASE):
        return False
    return word in SUBJECT_PRONOUNS | POSSESSIVE_PRONOUNS | DEMONSTRATIVES


def clip(before: str, after: str) -> str:
    """Return before + GAP + after; over 30 words only the clauses around the gap, "…" at the cuts."""
    if count_words(before + after) <= MAX_SENTENCE_WORDS:
        return before + GAP + after
    left, right = _clauses(before), _clauses(after)
    text = left.pop() + GAP + (right.pop(0) if right else "")
    while left or right:
        if left and count_words(left[-1] + text) <= MAX_SENTENCE_WORDS:
            text = left.pop() + text
        elif right and count_words(text + right[0]) <= MAX_SENTENCE_WORDS:
            text += right.pop(0)
        else:
            break
    return ("… " if left else "") + text.strip().rstrip(",;:" if right else "") + (" …" if right else "")


def _clauses(text: str) -> list[str]:
    """Cut after clause marks; the pieces join to `text` again."""
    return re.split(r"(?<=[,;:，；：、—])(?=\D)", text)


def gives_away(cloze: str, answer: str) -> bool:
    """Tell whether the answer can still be read beside the gap."""
    return f" {normalise(answer)} " in f" {normalise(cloze)} "
