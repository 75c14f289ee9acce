"""Generative MMLU (arXiv 2009.03300): the prompt that asks for a letter, and the letter a reply gives."""

import re
from collections.abc import Sequence

LETTERS = "ABCD"
INSTRUCTION = "Answer the multiple-choice question with the letter of the right choice only."

_CAPITAL = r"([A-D])\b(?!['’\-])"
"""A letter as a word of its own: not in "A-level", not in "B's"."""

_STATED = re.compile(
    r"(?i:\b(?:answer|choice|option)\b[^.:\n]{0,40}?(?:\bis\b|:|=)\s*(?:the\s+)?(?:option\s+|choice\s+|letter\s+)?)"
    rf"(?:\(([A-Da-d])\)|([A-Da-d])\)|{_CAPITAL}(?=\s*(?:$|[.,:;!)\]\n]|\s[-–—]|because\b|since\b|as\b|or\b|and\b)))"
)
_BY_PLACE = (
    # The reply opens with the letter: "B", "(b) ...", "B. ...", "B - ...", "B because ...".
    re.compile(
        r"\A(?:\(([A-Da-d])\)|([A-Da-d])\)|([a-d])[.:]?\Z"
        r"|([A-D])(?=[.:,;!]?\s*(?:\n|\Z)|[.:]\s|\s[-–—]|,?\s+(?:because|since)\b))"
    ),
    re.compile(rf"\b{_CAPITAL}\)?\s+is\s+(?:(?:the|a)\s+)?(?:most\s+)?(?:correct|right|best|true|accurate|answer)\b"),
    re.compile(r"^\(?([A-D])\)?[.:]?$", re.MULTILINE),
    re.compile(rf"(?i:\b(?:answer|option|choice|letter)\s+)\(?{_CAPITAL}"),
    re.compile(r"\(([A-D])\)"),
)
_LINE_LABEL = re.compile(r"^\(?([A-D])[.):]", re.MULTILINE)
_AND_ANOTHER = re.compile(rf"\)?\s*(?:,|/|&|\bor\b|\band\b)\s*(?:or\s+|and\s+)?\(?{_CAPITAL}")
_JOINED = re.compile(r"\)?\s*,?\s*(?:or|and)\b")
_ALTERNATIVES = re.compile(rf"\b[A-D]{_AND_ANOTHER.pattern}")
_REFUSED = re.compile(
    rf"\b(?:not|isn't|neither|nor)\s+(?:option\s+|choice\s+)?\(?{_CAPITAL}\)?"
    rf"|(?:\b(?:[Oo]ption|[Cc]hoice)\s+)?\(?\b{_CAPITAL}\)?\s+(?:is|was)\s+(?:not|incorrect|wrong|false)\b"
)
_BOXED = re.compile(r"\\boxed\{(?:\\text\{)?\s*([A-Da-d])\s*\}?\}|\[([A-Da-d])\]")
_MARKUP = re.compile(r"[*`$\"“”]|</?\w+>")


def mmlu_prompt(question: str, choices: Sequence[str]) -> str:
    """Return the prompt: what is asked for, the question, one line a choice."""
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([INSTRUCTION, "", question.strip(), *lines])


def find_letter(reply: str, choices: Sequence[str]) -> str | None:
    """Return the letter a reply settles on; None where it names none, several, or repeats the list of choices.

    The last statement of an answer counts. Failing that, a letter by its place (the reply opens
    with it, calls it correct, or names no other), then the exact text of one choice.
    """
    text = _without_markup(reply)
    stated = list(_STATED.finditer(text))
    if stated:
        hedged = any(_JOINED.match(text, match.end()) and _letter(match) != _letter(stated[-1]) for match in stated)
        return None if hedged or _AND_ANOTHER.match(text, stated[-1].end()) else _letter(stated[-1])
    return _letter_by_place(text) or _letter_of_choice(text, choices)


def _letter_by_place(text: str) -> str | None:
    if _ALTERNATIVES.search(text) or len(set(_LINE_LABEL.findall(text))) > 1:
        return None
    kept = _REFUSED.sub("", text)
    for pattern in _BY_PLACE:
        found = {_letter(match) for match in pattern.finditer(kept)}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _letter_of_choice(text: str, choices: Sequence[str]) -> str | None:
    claim = re.split(r"\banswer(?:\s+is\b|\s*:)", text, flags=re.IGNORECASE)[-1]
    said = {_plain(text), _plain(text.split("\n", 1)[0]), _plain(claim)}
    fitting = [letter for letter, choice in zip(LETTERS, choices, strict=False) if _plain(choice) in said]
    return fitting[0] if len(fitting) == 1 else None


def _letter(match: re.Match[str]) -> str:
    return str(next(filter(None, match.groups()))).upper()


def _without_markup(reply: str) -> str:
    boxed = _BOXED.sub(lambda match: f"({_letter(match)})", reply)
    return re.sub(r"[ \t]*\n[ \t]*", "\n", _MARKUP.sub("", boxed)).strip()


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" .,:;!?'").casefold()
