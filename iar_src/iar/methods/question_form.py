"""What can be told about anchors and questions by their form alone, before a certifier is paid."""

import html
import re

# method.md: an anchor is citable on its own; "this mechanism" is not.
_REFERENCE = re.compile(
    r"^(?:this|that|these|those|such|it|its|they|their|he|she|his|her|the (?:above|former|latter|following|same))\b"
    r"|^(?:该|本|此|这|那|上述|前述|其)",
    re.IGNORECASE,
)
_POINTS_AT_TEXT = re.compile(
    r"\b(?:this|the above|above-mentioned|aforementioned|mentioned|given|provided|following)"
    r" (?:method|text|passage|document|article|paper|chapter|section|excerpt|paragraph|context|mechanism|approach)\b"
    r"|\b(?:according to|based on|as (?:described|stated|mentioned|discussed)|described|stated|mentioned)"
    r" (?:in |by )?the (?:text|passage|document|article|paper|author|excerpt|context)s?\b"
    r"|\bdo(?:es)? the (?:text|passage|document|article|paper|author|excerpt)s?"
    r" (?:say|tell|state|mention|describe|explain)\b"
    r"|\bthe above\b(?!-)|\bin the (?:text|passage|excerpt)\b"
    r"|根据(?:本文|上文|文中|文章|文本|以上)|上述|本文|文中|该方法|这种方法",
    re.IGNORECASE,
)
MOST_ANCHOR_WORDS = 12
MOST_QUESTION_CHARACTERS = 400


def locate_quote(quote: str, text: str) -> tuple[int, int] | None:
    """Return the span of `text` that the quote copies; only white space and escaped "<" may differ."""
    for wording in (quote, html.unescape(quote)):
        words = wording.split()
        found = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
        if found:
            return found.span()
    return None


def anchor_fault(anchor: str) -> str:
    """Return why `anchor` is no citable object, "" if it may be one."""
    if _REFERENCE.search(anchor):
        return "a reference, not an object"
    if not any(map(str.isalnum, anchor)):
        return "no letter and no digit"
    return "too long for an anchor" if len(anchor.split()) > MOST_ANCHOR_WORDS else ""


def question_fault(question: str) -> str:
    """Return why `question` is refused by its form, "" if it is not."""
    if not question.endswith(("?", "？", "؟")):
        return "no question mark at the end"
    if _POINTS_AT_TEXT.search(question):
        return "points at the text"
    return "too long for a question" if len(question) > MOST_QUESTION_CHARACTERS else ""
